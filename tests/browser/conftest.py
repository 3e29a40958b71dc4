"""A real server on a free loopback port, a real Chromium, and an annotator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from app.web import tickets
from app.web.access import SESSION_COOKIE
from app.web.server_command import HEALTH_PATH, ROOT, command, environment
from storage.database.store import Store
from storage.labeling.pool import LabelEventRow, Pool
from storage.projects.annotators import AnnotatorRow, annotator_named
from storage.projects.class_rows import ClassRow
from storage.projects.classes import list_classes
from storage.projects.projects import ProjectRow
from tests.app import sample_store
from tests.free_ports import free_port

# The headless shell is the same engine without a desktop window: a sixth less CPU time for two long files of tests.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--mute-audio"]
FIRST_START_SECONDS = 180
STOP_SECONDS = 120
SLOW = 60_000  # ms; machines that test are busy, promises about time are in benchmarks/
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
expect.set_options(timeout=SLOW)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)


@dataclass
class Server:
    """The page server as users start it, with its own home folder."""

    home: Path
    port: int = field(default_factory=free_port)
    extra: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Server:
        values = environment("127.0.0.1", self.port, self.home) | {"OMP_NUM_THREADS": "1"} | self.extra
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command("127.0.0.1", self.port), cwd=ROOT, env=values, stdout=log, stderr=subprocess.STDOUT
            )
        end = time.monotonic() + FIRST_START_SECONDS
        while time.monotonic() < end:
            assert self.process.poll() is None, (self.home / "server.log").read_text()
            try:
                urllib.request.urlopen(self.url + HEALTH_PATH, timeout=10).read()
                return self
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the server did not start")

    def stop(self, hard: bool = False) -> None:
        if self.process is not None:
            self.process.kill() if hard else self.process.terminate()
            self.process.wait(STOP_SECONDS)
            self.process = None


@contextmanager
def running_worker(server: Server) -> Iterator[subprocess.Popen[bytes]]:
    """A worker as users start it, on the server's home. It serves every project in it."""
    values = environment("127.0.0.1", server.port, server.home) | {"OMP_NUM_THREADS": "1"}
    with (server.home / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app", "worker"], cwd=ROOT, env=values, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("winnow-home")


@pytest.fixture(scope="session")
def store(home: Path) -> Iterator[Store]:
    with Store.open(home=home, url=None) as opened:
        yield opened


@pytest.fixture(scope="session")
def server(home: Path, store: Store) -> Iterator[Server]:
    running = Server(home).start()
    yield running
    running.stop()


def own_server(folder: Path) -> Iterator[Server]:
    """A server with a separate home: a worker serves all projects of a home, also those of other tests."""
    home = folder / "home"
    home.mkdir()
    Store.open(home=home).close()
    running = Server(home).start()
    yield running
    running.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    require_chromium()
    with sync_playwright() as playwright:
        flags = [*CHROMIUM_FLAGS, "--process-per-site"]  # tabs of a context share a process, see `open_anchor`
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=flags, timeout=2 * SLOW)
        yield opened
        opened.close()


def require_chromium() -> None:
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Chromium is not installed; CI must drive it.")
        pytest.skip("needs Chromium (Debian: apt-get install chromium-headless-shell)")


@dataclass
class AnnotatorBrowser:
    """The browser of one annotator, for one project, with any number of tabs."""

    server: Server
    store: Store
    project: ProjectRow
    person: AnnotatorRow
    context: BrowserContext
    outside: list[str] = field(default_factory=list)  # requests to another host
    listener: Callable[[Any], None] = lambda request: None

    @property
    def pool(self) -> Pool:
        return Pool(self.store, self.project.id)

    @property
    def classes(self) -> list[ClassRow]:
        return list_classes(self.store, self.project.id)

    def tab(self, screen: str = "") -> Page:
        page = self.context.new_page()
        page.goto(f"{self.server.url}/{screen}?project={self.project.id}", wait_until="domcontentloaded")
        return page

    def label_tab(self) -> Page:
        page = self.tab()
        wait_for_card(page)
        return page

    def grid_tab(self) -> Page:
        page = self.tab("grid")
        page.wait_for_selector(".tile", timeout=SLOW)
        return page

    def events(self, kind: str | None = "label") -> list[LabelEventRow]:
        """What is stored for this person in this project, oldest first."""
        found = self.pool.recent(self.person.id, 10_000)[::-1]
        return [event for event in found if kind is None or event.kind == kind]


def open_anchor(context: BrowserContext, server: Server) -> None:
    """Open a small page that keeps the process of the context's tabs alive. In a new process, everything that Streamlit
    loads is parsed and compiled again: Map took 3.0 s of CPU time instead of 1.7 s, Train 3.8 s instead of 2.4 s."""
    context.new_page().goto(server.url + HEALTH_PATH)


def choose(page: Page, field: Locator, option: str) -> None:
    """Choose an option. A list closes if it is drawn again while it is open, so it is opened until the click
    succeeds."""
    wanted = page.get_by_role("option", name=option, exact=True)
    for attempt in range(10):
        expect(field).to_have_count(1)  # while a run ends, a field whose options changed is on the page twice
        at_rest(page)
        field.click()
        try:
            wanted.click(timeout=5_000)
            return
        except PlaywrightTimeout:
            if attempt == 9:
                raise
            page.keyboard.press("Escape")


def wait_for_card(page: Page) -> None:
    page.wait_for_selector(".screen[data-view='card'] .frame img", timeout=SLOW)
    page.wait_for_function(AHEAD_READY, timeout=SLOW)


# The widget writes down how many cards lie ahead and how many of them still load their media; tests wait on it.
AHEAD_READY = """() => {
  const roots = [...document.querySelectorAll('.stBidiComponent *')].filter((e) => e.shadowRoot);
  const screen = roots.map((e) => e.shadowRoot.querySelector('.screen')).find(Boolean);
  return screen && screen.dataset.ahead !== undefined && screen.dataset.preparing === '0';
}"""


def at_rest(page: Page) -> None:
    """Wait until no script runs and its output is drawn. Wait for an effect of a click first: a run starts with a
    delay."""
    state = "[data-test-script-state='notRunning'][data-test-connection-state='CONNECTED']"
    page.wait_for_selector(f".stApp{state}", timeout=SLOW)


STANDS_STILL = """async (element) => {
  for (let frames = 0, last = null; frames < 20; ) {
    await new Promise(requestAnimationFrame);
    const top = element.getBoundingClientRect().top;
    [frames, last] = [top === last ? frames + 1 : 0, top];
  }
}"""


def stands_still(element: Locator) -> None:
    """Wait until the element has not moved for 20 frames. While an expander above it opens, an element can move between
    the press and the release of the mouse button, and is then not clicked."""
    element.evaluate(STANDS_STILL)


# Everything an attribute becomes from now on, for states that pass by themselves: a clip of half a second may have
# ended before the test looks.
REMEMBER = """([selector, attribute]) => {
  const look = (root) => {
    const found = root.querySelector(selector);
    if (found) return found.getRootNode();
    for (const one of root.querySelectorAll('*')) {
      const inside = one.shadowRoot && look(one.shadowRoot);
      if (inside) return inside;
    }
    return null;
  };
  const seen = (window.remembered = []);
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const value = target.getAttribute(attribute);
      if (target.matches(selector) && value !== seen[seen.length - 1]) seen.push(value);
    }
  }).observe(look(document), { subtree: true, attributeFilter: [attribute] });
}"""


def remember(page: Page, selector: str, attribute: str) -> Callable[[], list[str]]:
    """A function that returns the values that `attribute` of a matching element has had since then, without repeats."""
    page.evaluate(REMEMBER, [selector, attribute])
    return lambda: page.evaluate("() => window.remembered")


def eventually(page: Page, read: Callable[[], Any], expected: object) -> None:
    """Wait up to SLOW until `read` returns `expected`.

    A read that fails because there is nothing to read yet (a plot is being replaced, an item is not stored) is
    retried."""
    end, found = time.monotonic() + SLOW / 1000, object()
    while True:
        try:
            found = read()
        except (PlaywrightError, LookupError) as error:
            found = error
        if found == expected:
            return
        assert time.monotonic() < end, f"still {found!r}, not {expected!r}"
        page.wait_for_timeout(50)  # and not time.sleep: routes and listeners of the test go on meanwhile


def serious(page: Page) -> list[str]:
    """The serious findings of axe-core: missing names, insufficient contrast, keyboard traps."""
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {[n['target'] for n in v['nodes']]}" for v in found if v["impact"] in ("serious", "critical")]


def current_item(page: Page) -> int:
    """The item of the card on screen. Keys act before `press` returns, so this may be read right after one."""
    return int(page.locator(".screen").get_attribute("data-item-id") or 0)


def saved(page: Page, timeout: float = SLOW) -> None:
    """Wait until all actions are stored. A key counts as unsaved before `press` returns, a tap or an adopted label
    later."""
    page.wait_for_selector(".saved[data-state='saved']", timeout=timeout)


@pytest.fixture(scope="session")
def contexts(chromium: Browser) -> Iterator[dict[str, list[BrowserContext]]]:
    """Browser contexts that tests use one after the other, so that Streamlit's scripts are loaded once."""
    kept: dict[str, list[BrowserContext]] = {}
    yield kept
    for context in [context for same in kept.values() for context in same]:
        context.close()


@pytest.fixture
def lend_context(chromium: Browser, contexts: dict[str, list[BrowserContext]]) -> Iterator[Any]:
    """`lend_context(server, **options)` gives a browser context without cookies and without tabs until the test ends.
    The next test gets the same context: what a page keeps in the browser's storage stays there."""
    taken: list[BrowserContext] = []

    def lend(server: Server, **options: Any) -> BrowserContext:
        # A third of the CPU time of a page load is spent on drawing the frames of fades and of placeholders that pulse.
        # The pages of `test_every_screen` move.
        options.setdefault("reduced_motion", "reduce")
        free = contexts.setdefault(repr((server.url, sorted(options.items()))), [])
        context = next((one for one in free if one not in taken), None)
        if context is None:
            context = chromium.new_context(**options)
            # Playwright's own calls count as gestures; only real keys and clicks shall.
            context.add_init_script("delete Navigator.prototype.userActivation")
            context.set_default_timeout(SLOW)
            open_anchor(context, server)
            free.append(context)
        taken.append(context)
        return context

    yield lend
    for context in taken:
        context.set_offline(False)
        for page in context.pages:
            if not page.url.endswith(HEALTH_PATH):
                page.close()
        context.clear_cookies()


@pytest.fixture
def open_browser(server: Server, store: Store, lend_context: Callable[..., BrowserContext]) -> Iterator[Any]:
    """`open_browser(project, name, **context options)` gives an annotator a browser context until the test ends."""
    taken: list[AnnotatorBrowser] = []

    def open_context(project: ProjectRow, name: str = "Ana Koller", **options: Any) -> AnnotatorBrowser:
        options.setdefault("viewport", {"width": 1280, "height": 800})
        context = lend_context(server, **options)
        person = annotator_named(store, name)
        sign_in(context, server, person)
        user = AnnotatorBrowser(server, store, project, person, context)
        user.listener = lambda request: user.outside.append(request.url) if leaves(request.url, server) else None
        context.on("request", user.listener)
        taken.append(user)
        return user

    yield open_context
    for user in taken:
        user.context.remove_listener("request", user.listener)


def sign_in(context: BrowserContext, server: Server, person: AnnotatorRow) -> None:
    """The browser gets the session cookie of `person`."""
    ticket = tickets.issue(tickets.signing_key(server.home), person.id, 3600)
    context.add_cookies([{"name": SESSION_COOKIE, "value": ticket, "url": server.url, "httpOnly": True}])


def leaves(url: str, server: Server) -> bool:
    return not url.startswith((server.url, "data:", "blob:", f"ws://127.0.0.1:{server.port}"))


_numbers = iter(range(1, 1_000_000))


@pytest.fixture
def audio(store: Store) -> ProjectRow:
    """A fresh audio project with 24 short clips, the same in every test, and ten classes."""
    return sample_store.audio_project(store, f"Spoken digits {next(_numbers)}", 24, seed=0)


@pytest.fixture
def images(store: Store) -> ProjectRow:
    return sample_store.image_project(store, f"Handwritten digits {next(_numbers)}", 30, seed=0)
