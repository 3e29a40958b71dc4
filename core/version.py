"""The version of Winnow, in one place: the command line, the pages and the package metadata read it here."""

VERSION = "0.4.0"
