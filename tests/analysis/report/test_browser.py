"""The page in a real browser: what its controls change, and that it asks the network for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from tests.analysis.report.conftest import NASTY

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--force-prefers-reduced-motion",
)
PATIENCE = 60
"""Seconds: the machine may be busy."""

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no browser: needs chromium and chromedriver (Debian: chromium, chromium-driver)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser with a new profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_window_size(1300, 900)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(browser: webdriver.Chrome, finished: Path) -> webdriver.Chrome:
    """The report, with all of its charts drawn."""
    browser.get((finished / "report.html").as_uri())
    charts = browser.find_elements(By.CSS_SELECTOR, "[data-chart]")
    for chart in charts:
        browser.execute_script("arguments[0].scrollIntoView({behavior: 'instant'})", chart)
    wait(browser, lambda _: all(chart.find_elements(By.CSS_SELECTOR, "svg .mark-text") for chart in charts))
    assert len(charts) >= 6
    return browser


UNCOVER = """
const element = arguments[0];
element.scrollIntoView({behavior: "instant", block: "center"});
const place = element.getBoundingClientRect();
const top = document.elementFromPoint(place.x + place.width / 2, place.y + place.height / 2);
return element.contains(top);
"""
"""Scrolls to an element, and returns whether nothing covers its centre."""


def wait(browser: webdriver.Chrome, condition: Callable[[webdriver.Chrome], Any]) -> Any:
    """Return what a condition gives as soon as it is true."""
    return WebDriverWait(browser, PATIENCE, poll_frequency=0.05).until(condition)


def click(browser: webdriver.Chrome, element: WebElement) -> None:
    """Click an element as soon as it is in view and nothing covers it: a chart that is still drawn moves the page."""

    def clicked(browser: webdriver.Chrome) -> bool:
        if not browser.execute_script(UNCOVER, element):
            return False
        try:
            element.click()
        except ElementClickInterceptedException:
            return False
        return True

    wait(browser, clicked)


def lines(browser: webdriver.Chrome) -> list[str | None]:
    """The shapes of the lines in the chart of models."""
    paths = browser.find_elements(By.CSS_SELECTOR, "#chart-accuracy .mark-line path")
    return [path.get_attribute("d") for path in paths]


def picture(browser: webdriver.Chrome, name: str) -> str:
    """The pixels of a picture of the gallery."""
    url: str = browser.execute_script("return document.getElementById(arguments[0]).toDataURL()", f"gallery-{name}")
    return url


def first_column(table: WebElement) -> list[str]:
    return [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "tbody th")]


def test_nothing_is_written_to_the_console_and_nothing_is_requested(page, finished):
    assert page.get_log("browser") == []
    own = (finished / "report.html").as_uri()
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [each["params"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    asked = {each["request"]["url"] for each in sent if each["documentURL"] == own}
    assert {url for url in asked if not url.startswith("data:")} == {own}


def test_a_hostile_name_stays_text(page):
    assert page.execute_script("return window.hacked") is None
    names = first_column(page.find_element(By.CSS_SELECTOR, "table.rank"))
    assert NASTY.replace("\u2028", "\\u2028") in names
    options = [option.text for option in page.find_elements(By.CSS_SELECTOR, "#gallery-model option")]
    assert [option for option in options if "</script>" in option and "{{ 1 }}" in option]


def test_filters_change_what_a_chart_shows(page):
    before = lines(page)
    assert len(before) == 2
    boxes = page.find_elements(By.CSS_SELECTOR, "#chart-accuracy input[type=checkbox]")
    click(page, boxes[1])
    wait(page, lambda browser: len(lines(browser)) == 1)
    click(page, boxes[1])
    wait(page, lambda browser: lines(browser) == before)
    attack = Select(page.find_element(By.CSS_SELECTOR, "#chart-accuracy select"))
    attack.select_by_visible_text("darken")
    wait(page, lambda browser: len(lines(browser)) == 2 and lines(browser) != before)


def test_a_line_tells_its_numbers(page):
    point = page.find_element(By.CSS_SELECTOR, "#chart-accuracy .mark-symbol path")
    page.execute_script("arguments[0].scrollIntoView({behavior: 'instant', block: 'center'})", point)
    webdriver.ActionChains(page).move_to_element(point).perform()
    tooltip = wait(page, lambda browser: browser.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element.visible"))
    assert "samples" in tooltip[0].text and "24" in tooltip[0].text


def test_the_slider_changes_the_pictures_and_the_predictions(page):
    slider = wait(page, lambda browser: browser.find_element(By.ID, "gallery-eps"))
    wait(page, lambda browser: browser.find_element(By.ID, "gallery-eps-value").text)
    seen = {}
    for step in range(int(slider.get_attribute("max") or 0) + 1):
        page.execute_script(
            "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", slider, step
        )
        seen[page.find_element(By.ID, "gallery-eps-value").text] = picture(page, "adversarial")
    assert len(seen) == len(set(seen.values())) == 3
    assert "predicted level" in page.find_element(By.ID, "gallery-adversarial-text").text
    original = picture(page, "original")
    click(page, page.find_element(By.CSS_SELECTOR, "#gallery-samples label:not(:has(:checked))"))
    wait(page, lambda browser: picture(browser, "original") != original)


def test_tables_are_sorted_by_a_click_on_a_heading(page):
    table = page.find_element(By.CSS_SELECTOR, "table.rank")
    heading = table.find_element(By.CSS_SELECTOR, "thead th")
    for order, expected in (
        ("ascending", sorted(first_column(table))),
        ("descending", sorted(first_column(table))[::-1]),
    ):
        click(page, heading.find_element(By.TAG_NAME, "button"))
        assert heading.get_attribute("aria-sort") == order
        assert first_column(table) == expected


def test_numbers_are_sorted_by_value_and_not_by_their_digits(page):
    script = """
        const tables = [...document.querySelectorAll("table.sortable")];
        const table = tables.find((each) => each.caption?.textContent.includes("success"));
        const place = [...table.querySelectorAll("thead th")].findIndex((head) => head.textContent === "0.1");
        table.querySelectorAll("thead button")[place].click();
        return [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[place].textContent));
    """
    shares = page.execute_script(script)
    assert shares == sorted(shares, reverse=True) and len(shares) == 2


def test_the_eps_of_the_worst_case_is_chosen(page):
    table = page.find_element(By.CSS_SELECTOR, "table.rank")
    select = Select(table.find_element(By.TAG_NAME, "select"))
    shown = set()
    for option in select.options:
        select.select_by_visible_text(option.text)
        visible = [each for each in table.find_elements(By.CSS_SELECTOR, "[data-eps]") if each.is_displayed()]
        assert {each.get_attribute("data-eps") for each in visible} == {option.text}
        shown.add(option.text)
    assert len(shown) == 3


def test_one_matrix_is_shown_at_a_time(page):
    def visible() -> list[str]:
        panels = page.find_elements(By.CSS_SELECTOR, "#targets .panel")
        return [str(panel.get_attribute("data-keys")) for panel in panels if panel.is_displayed()]

    (before,) = visible()
    model = page.find_elements(By.CSS_SELECTOR, "#targets select")[0]
    Select(model).select_by_index(1)
    (after,) = visible()
    assert json.loads(before)["Model"] == "levels" and json.loads(after)["Model"] != "levels"
    assert json.loads(before)["eps"] == json.loads(after)["eps"] == "0.1"


def test_the_theme_changes_the_page_and_its_charts(page):
    def colours() -> tuple[str, ...]:
        script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
        parts = (("body", "background-color"), ("body", "color"), ("#chart-accuracy .role-axis-label text", "fill"))
        return tuple(page.execute_script(script, *part) for part in parts)

    before = colours()
    button = page.find_element(By.ID, "theme")
    click(page, button)
    after = colours()
    assert all(one != other for one, other in zip(before, after, strict=True)) and button.text == "Light theme"
    click(page, button)
    assert colours() == before


def test_a_telephone_needs_no_horizontal_scrolling(page):
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": False}
    )
    size = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    needed, available = page.execute_script(size)
    assert needed <= available <= 390
    page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_what_is_folded_is_printed(page):
    closed = page.find_elements(By.CSS_SELECTOR, "details:not([open])")
    assert closed
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert page.find_elements(By.CSS_SELECTOR, "details:not([open])") == []
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert page.find_elements(By.CSS_SELECTOR, "details:not([open])") == closed
