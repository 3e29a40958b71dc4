"""Every screen with an element that shows that it is ready, for tests and benchmarks of all screens."""

READY = {
    "Label": ".screen[data-view='card'] .frame img",
    "Grid": ".tile img",
    "Train": ".st-key-card-workers",
    "Map": ".textpoint text",
    "Data": ".st-key-card-project [data-testid='stFormSubmitButton'] button",
    "Export": ".st-key-card-carries",
    "Review": ".st-key-card-people",
}
