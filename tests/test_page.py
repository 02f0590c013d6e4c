"""The page in a real browser (`nox -s page`): Chromium from the system, driven by playwright."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from records import fading, save

from benchmark.report import PAGE, compose, write

pytestmark = pytest.mark.page

EVIL = "<script>document.title='owned'</script>"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A report of three methods on two protocols; one run's group and another's reason are markup."""
    folder = tmp_path_factory.mktemp("site")
    for seed in (0, 1):
        for method, start in (("fea", 90.0), ("gm", 85.0), ("kmeans", 60.0)):
            save(folder, method, "digits-t2", seed, fading(3, start + seed, 2))
            save(folder, method, "cifar100-t5", seed, fading(6, start + seed, 2))
    save(folder, "fea", "digits-t2", 0, changed={"backbone": EVIL})
    save(folder, "gm", "digits-t2", 2, fading(3, 50, 2), status="diverged", reason=EVIL)
    write(compose(folder), folder)
    # a method's name cannot hold markup in a record; should one ever, the page itself must not mind
    page = folder / PAGE
    page.write_text(page.read_text().replace('"fea":"FEA"', '"fea":"FEA\\u003cscript>document.title=1\\u003c/script>"'))
    return page


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only where the page is tested

    assert CHROMIUM, "there is no Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


class Tab:
    """An open page and everything that went wrong or out in it."""

    def __init__(self, browser: Any, site: Path, width: int = 1280, scheme: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(site.as_uri())

    def column(self, place: str, title: str) -> list[str]:
        titles = self.page.locator(f"#{place} thead th").all_inner_texts()
        number = [text.rstrip(" ▲▼") for text in titles].index(title) + 1
        return self.page.locator(f"#{place} tbody td:nth-child({number})").all_inner_texts()

    def sort(self, place: str, title: str) -> None:
        self.page.locator(f"#{place} thead button", has_text=title).first.click()

    @property
    def sideways(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))


@pytest.fixture
def tab(browser, site) -> Tab:
    return Tab(browser, site)


def test_nothing_leaves_the_file_and_nothing_complains(tab, site):
    tab.page.locator("#runs tbody button").first.click()
    tab.page.locator("#theme").click()
    assert tab.complaints == []
    assert {url.split(":")[0] for url in tab.requests} <= {"file", "data"}
    assert [url for url in tab.requests if url.startswith("file")] == [site.as_uri()]
    assert tab.page.title() == "CNCD bench: results"  # no script of a record ran


def test_tables_sort_by_number_and_back(tab):
    for place in ("cells", "runs"):
        tab.sort(place, "accuracy")
        down = [float(text.split()[0]) for text in tab.column(place, "accuracy") if text and "div" not in text]
        assert down == sorted(down, reverse=True)
        assert len({*down}) > 2
        assert tab.page.locator(f"#{place} th[aria-sort=descending]").count() == 1
        tab.sort(place, "accuracy")
        up = [float(text.split()[0]) for text in tab.column(place, "accuracy") if text and "div" not in text]
        assert up == down[::-1]
        tail = tab.column(place, "accuracy")[len(up) :]
        assert all(not text or "div" in text for text in tail)  # what has no figure stays last


def test_filters_hide_what_does_not_fit(tab):
    page = tab.page
    everything = page.locator("#runs tbody tr").count()
    assert everything == 14
    page.locator("#filter-protocol").select_option("cifar100-t5")
    assert {*tab.column("cells", "Protocol")} == {"cifar100-t5"}
    assert page.locator("#runs tbody tr").count() == 6
    shown = page.locator("#figures figure:not([hidden])").count()
    assert 0 < shown < page.locator("#figures figure").count()
    page.locator("#filter-method").select_option("kmeans")
    assert {*tab.column("runs", "Method")} == {"k-means (floor)"}
    page.locator("#filter-group").select_option(index=2)
    page.locator("#clear").click()
    assert page.locator("#runs tbody tr").count() == everything


def test_a_run_opens_with_its_command_and_curves(tab):
    page = tab.page
    page.locator("#runs tbody button", has_text="cifar100-t5/gm/seed1").click()
    command = page.locator("#run code").inner_text()
    assert command.startswith("bench run --method gm --protocol cifar100-t5 --seed 1 --budget paper")
    # a term of the base session; a term and a diagnostic of two phases, five sessions each
    assert page.locator("#run svg polyline").count() == 1 + 2 * 2 * 5
    assert "85.00" not in page.locator("#run").inner_text()  # seed 1 starts a point higher
    assert "86.00" in page.locator("#run").inner_text()
    diverged = [
        text
        for text, status in zip(tab.column("runs", "accuracy"), tab.column("runs", "Status"), strict=True)
        if status == "diverged"
    ]
    assert diverged == [""]  # a run that did not finish has no figures to be sorted by
    page.locator("#run button", has_text="Copy").click()
    page.locator("#run .command button", has_text="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command
    page.locator("#run button", has_text="Close").click()
    assert not page.locator("#run").is_visible()


def test_keys_are_enough(tab):
    page = tab.page
    page.locator("#cells thead button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#cells th[aria-sort]").count() == 1
    page.locator("#runs tbody button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("#run").is_visible()
    assert page.evaluate("document.activeElement.tagName") == "H2"


def brightness(page: Any) -> int:
    return int(page.evaluate("+getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]"))


def test_dark_follows_the_system_and_the_button(browser, site):
    light, dark = Tab(browser, site), Tab(browser, site, scheme="dark")
    assert brightness(light.page) > 200
    assert brightness(dark.page) < 60
    for tab in (light, dark):
        tab.page.locator("#theme").click()
    assert brightness(light.page) < 60
    assert brightness(dark.page) > 200


@pytest.mark.parametrize("width", [390, 320, 1280])
def test_no_sideways_scrolling(browser, site, width):
    tab = Tab(browser, site, width=width)
    assert tab.sideways <= 0
    for name in ("digits-t2/fea", "cifar100-t5/gm"):
        tab.page.locator("#runs tbody button", has_text=name).first.click()
        assert tab.sideways <= 0


def test_markup_in_a_record_stays_text(tab):
    page = tab.page
    assert any(EVIL in text for text in tab.column("cells", "Group"))
    assert any("<script>" in text for text in tab.column("cells", "Method"))
    page.locator("#runs tbody tr", has_text="diverged").locator("button").click()
    assert EVIL in page.locator("#run").inner_text()
    assert page.locator("script").count() == 2
    page.locator("summary", has_text="Average accuracy").click()
    assert "92.30" in page.locator("details[open]").inner_text()  # the paper's figures are there
    assert page.title() == "CNCD bench: results"
