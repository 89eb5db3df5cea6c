"""The page for everyone: keyboard, screen readers (axe), narrow and wide screens, themes, colours; the map."""

import importlib.util
import re
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from speedyfeed.serving.journal import News
from speedyfeed.serving.routes.page import PAGE
from speedyfeed.serving.service import Service
from tests.serving.browser import Page, served, start_browser

WIDTHS = (360, 390, 640, 768, 992, 1024, 1440, 1920)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = start_browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.quit()


@pytest.fixture
def service(run, tmp_path):
    service = Service(run, tmp_path)
    service.open()
    sections = ("arts", "autos", "finance", "foodanddrink", "health", "lifestyle", "travel", "weather")
    service.add(
        [News(news_id=f"{name}-{i}", title=f"{name} {i}", category=name) for name in sections for i in range(3)]
    )
    yield service
    service.close()


@pytest.fixture
def page(browser, service):
    with served(service) as address:
        yield Page(browser, address)


def find_axe() -> str:
    """Source of axe-core; skips where no package holds it."""
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("accessibility is tested with axe: pip install axe-core-python")
    return (Path(found.origin).parent / "axe.min.js").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(page, theme):
    axe = find_axe()

    def check(state):
        page.run(axe)
        found = page.browser.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run().then((found) => done(found.violations))"
        )
        grave = [one for one in found if one["impact"] in ("serious", "critical")]
        told = [(one["id"], one["nodes"][0]["html"]) for one in grave]
        assert not told, (state, told)

    page.run("localStorage.setItem('speedyfeed-theme', arguments[0])", theme)
    page.visit("?a")
    check("new user")
    page.open(1)
    check("a story")
    page.back()
    check("after reading")
    page.press("n")
    check("publishing")
    page.find("#headline").send_keys("Late goal", Keys.ENTER)
    page.wait(lambda: page.find("#published").is_displayed())
    check("published")
    page.press(Keys.ESCAPE)
    page.press("?")
    check("keys")
    page.browser.get(page.address + "compare")
    page.wait(lambda: page.find("#problem").text)
    check("compare")
    with page.phone():
        page.visit("?b")
        check("phone")


def test_everything_by_keyboard(page):
    page.press("j", "j")
    title = page.titles()[1]
    assert page.focused().text == title
    page.press(Keys.ENTER)
    page.wait(lambda: page.texts("#story-title") == [title] and page.history() == [title])
    assert page.focused().get_attribute("id") == "story-title"  # a screen reader begins here
    page.press("b")
    page.wait(lambda: page.find("#feed").is_displayed())
    assert page.focused().text == title  # the focus is not lost
    page.press("u")
    page.wait(lambda: page.history() == [])
    page.press("?")
    page.wait(lambda: page.find("#keys").is_displayed())
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.find("#keys").is_displayed())
    page.press("n")
    page.wait(lambda: page.focused().get_attribute("id") == "headline")


def test_the_tabs_of_a_phone_never_cover_the_story_in_focus(page):
    top = "return arguments[0].getBoundingClientRect().top"
    with page.phone(390, 844):
        link, tabs = page.find(".story:nth-child(4) h3 a"), page.find(".tabs")
        page.run("scrollBy({ top: arguments[0], behavior: 'instant' })", page.run(top, link) - page.run(top, tabs))
        assert page.run(top, link) == pytest.approx(page.run(top, tabs), abs=2)  # behind them
        page.run("arguments[0].focus()", link)
        page.wait(lambda: page.run(top, link) + link.size["height"] <= page.run(top, tabs))


def test_light_and_dark(page):
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = page.run(colour)
    page.find("#theme").click()
    after = page.run(colour)
    assert before != after
    page.visit("")
    assert page.run(colour) == after
    page.find("#theme").click()


@pytest.mark.slow
def test_no_width_needs_sideways_scrolling(page):
    page.read(1)
    for width in WIDTHS:
        with page.phone(width, 900):
            page.wait(lambda width=width: page.run("return innerWidth") == width)
            assert page.run("return document.documentElement.scrollWidth") == width
            assert page.find(".tabs").is_displayed() == (width <= 992)
            page.open(0)
            assert page.run("return document.documentElement.scrollWidth") == width
            page.back()


def boxes(page):
    """Rectangles of the visible labels of the map, You included, and of the map itself."""
    script = (
        "return [...document.querySelectorAll(arguments[0])].filter((one) => "
        "getComputedStyle(one).visibility === 'visible').map((one) => one.getBoundingClientRect().toJSON())"
    )
    return page.run(script, "#map text"), page.run(script, "#map")[0]


def test_labels_of_the_map_overlap_nothing_and_stay_inside(page):
    for read in (False, True):
        if read:
            page.read(2)
        labels, frame = boxes(page)
        assert len(labels) >= 8
        for a, b in combinations(labels, 2):
            assert (
                a["right"] <= b["left"] + 1
                or b["right"] <= a["left"] + 1
                or (a["bottom"] <= b["top"] + 1 or b["bottom"] <= a["top"] + 1)
            )
        assert all(frame["left"] <= one["left"] and one["right"] <= frame["right"] for one in labels)
        assert all(frame["top"] <= one["top"] and one["bottom"] <= frame["bottom"] for one in labels)


def test_you_move_on_the_map_and_its_marks_have_headlines(page):
    user = page.find("#map .user")
    assert user.get_attribute("visibility") == "hidden"
    places = set()
    for number in range(3):
        page.read(number)
        assert user.get_attribute("visibility") == "visible"
        places.add(user.get_attribute("style"))
        assert page.count("#map .click") == number + 1
    assert len(places) == 3
    dot = page.browser.find_elements(By.CSS_SELECTOR, "#map .pick")[-1]
    page.run("arguments[0].dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))", dot)
    headline = page.find("#map-caption b").text
    assert headline in page.titles()
    page.run("arguments[0].dispatchEvent(new MouseEvent('click', { bubbles: true }))", dot)
    page.wait(lambda: page.texts("#story-title") == [headline])


# Simulation of colour blindness for linear RGB, severity 1 (Machado, Oliveira and Fernandes, 2009).
VISION = {
    "all colours": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
LEAST_DISTANCE = 0.12
"""In OKLab, where 0.02 is just noticeable; six colours of the palette of Okabe and Ito have 0.076."""


def _oklab(linear: np.ndarray) -> np.ndarray:
    cones = (
        linear.clip(0, 1)
        @ np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        ).T
    )
    axes = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.cbrt(cones) @ np.array(axes).T


def test_colours_of_topics_stay_apart_for_the_colour_blind():
    style = (PAGE / "style.css").read_text("utf-8")
    palettes = [re.findall(r"--c\d: #(\w{6});", theme) for theme in style.split('[data-theme="dark"] {')[:2]]
    assert [len(palette) for palette in palettes] == [6, 6]
    for palette, matrix in product(palettes, VISION.values()):
        rgb = np.array([[int(colour[i : i + 2], 16) / 255 for i in (0, 2, 4)] for colour in palette])
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        seen = _oklab(linear @ np.array(matrix).T)
        assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > LEAST_DISTANCE


def test_vignettes_are_drawn_alike_for_alike_stories_only(page):
    drawn = page.run("return [...document.querySelectorAll('.story .vignette')].map((one) => one.innerHTML)")
    assert len(drawn) == 21
    assert len(set(drawn)) == 21
    assert all("<path" in one or "<circle" in one or "<rect" in one for one in drawn)
    before = dict(zip(page.titles(), drawn, strict=True))
    page.browser.refresh()
    page.wait(page.titles)
    again = page.run("return [...document.querySelectorAll('.story .vignette')].map((one) => one.innerHTML)")
    assert dict(zip(page.titles(), again, strict=True)) == before
