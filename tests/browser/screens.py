"""Every screen and what is on it when it is ready, for tests and benchmarks that walk through all of them."""

READY = {
    "Label": ".screen[data-view='card'] .frame img",
    "Grid": ".tile img",
    "Learn": ".st-key-card-workers",
    "Map": ".textpoint text",
    "Collect": ".st-key-card-project [data-testid='stFormSubmitButton'] button",
    "Deliver": ".st-key-card-carries",
    "Review": ".st-key-card-people",
}
