"""The page in a real browser: clicks, reasons, publishing, errors, keyboard, phone; no other host is contacted."""

import json
import os
import shutil
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from speedyfeed.serving.app import build_app
from speedyfeed.serving.journal import News
from speedyfeed.serving.middleware import WriteAccess
from speedyfeed.serving.query import Query
from speedyfeed.serving.routes.page import PAGE
from speedyfeed.serving.service import Service

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1360,1000 "
    "--force-prefers-reduced-motion"  # a story on its way to a new place cannot be clicked
)
PATIENCE = 120  # a busy machine is no failure


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (BROWSER and DRIVER):
        assert not os.environ.get("CI"), "chromium and chromedriver are needed to test the page"
        pytest.skip("the page is tested in chromium: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for switch in SWITCHES.split():
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@contextmanager
def served(service, token=None):
    """Run the service, and yield its address."""
    app = build_app(service, WriteAccess(token, "127.0.0.1"))
    server = uvicorn.Server(
        uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not server.started and time.monotonic() < deadline:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def service(run, tmp_path):
    service = Service(run, tmp_path)
    service.open()
    yield service
    service.close()


@pytest.fixture
def page(browser, service):
    with served(service) as address:
        yield Page(browser, address)


class Page:
    """The page as a user sees and operates it."""

    def __init__(self, browser, address):
        self.browser = browser
        self.address = address
        browser.get(address)
        self.wait(lambda: self.titles())

    def wait(self, happened):
        return WebDriverWait(self.browser, PATIENCE, 0.05).until(lambda _: happened())

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        """Texts of all matching elements, read by one script so that nothing is redrawn in between."""
        script = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
        return self.browser.execute_script(script, selector)

    def titles(self):
        return self.texts(".story h3 button")

    def read(self, number):
        """Open a story, wait until it has left the feed, and return its title."""
        title = self.titles()[number]
        self.find(f".story:nth-child({number + 1}) h3 button").click()
        self.wait(lambda: title not in self.titles())
        return title

    def press(self, *keys):
        """Press keys where the focus is."""
        ActionChains(self.browser).send_keys(*keys).perform()

    def problem(self):
        box = self.find("#problem")
        return box.text if box.is_displayed() else ""


def test_a_click_reranks_the_feed_and_every_story_says_why(page):
    before = page.titles()
    assert len(before) == 12
    title = page.read(3)
    after = page.titles()
    assert after != [one for one in before if one != title]
    assert page.texts("#history li span") == [title]
    reasons = page.texts(".why em")
    assert reasons
    assert set(reasons) == {title}
    assert all("% alike" in text and "% of your taste" in text for text in page.texts(".summary"))
    assert page.find("#map .user").get_attribute("visibility") == "visible"
    assert len(page.browser.find_elements(By.CSS_SELECTOR, "#map .click")) == 1
    assert len(page.browser.find_elements(By.CSS_SELECTOR, "#map .news")) == 12


def test_undo_forget_and_a_visit_later(page):
    fresh = page.titles()
    first, second = page.read(0), page.read(0)
    page.browser.refresh()
    page.wait(lambda: len(page.titles()) == 10)
    assert page.texts("#history li span") == [second, first]
    page.find("#undo").click()
    page.wait(lambda: page.texts("#history li span") == [first])
    page.find("#forget").click()
    page.wait(lambda: page.titles() == fresh)
    assert page.find("#welcome").is_displayed()


def test_a_pasted_headline_joins_the_feed(page, service):
    page.read(0)
    page.find("#headline").send_keys("Cup comes <b>home</b> at last")
    page.find("#add button").click()
    page.wait(lambda: "Published." in page.find("#published").text)
    assert "in your feed" in page.find("#published").text
    assert "Cup comes <b>home</b> at last" in page.titles()  # as text, never as markup
    assert page.texts(".just-in h3 button") == ["Cup comes <b>home</b> at last"]
    assert len(page.texts("#published li")) == 3
    page.find("#published .link").click()
    assert page.browser.switch_to.active_element.text == "Cup comes <b>home</b> at last"
    assert len(service.feed.catalogue) == 13


def _low_title(service):
    """A title that would be below the first page of a new user."""
    for number in range(100, 200):
        service.add([News(news_id="try", title=f"number {number}")])
        ids = [one.news.news_id for one in service.feed.recommend(Query(k=60)).ranked]
        service.feed.catalogue.remove("try")
        if "try" in ids[21:]:
            return f"number {number}"
    raise AssertionError("every title is on the first page")


def test_a_headline_far_down_is_fetched_to_be_seen(page, service):
    service.add([News(news_id=f"M{number}", title=f"number {number}") for number in range(40)])
    page.find("#headline").send_keys(_low_title(service))
    page.find("#add button").click()
    page.wait(lambda: "Published." in page.find("#published").text)
    assert len(page.texts(".just-in")) == 1
    assert len(page.titles()) > 21


def test_topics_filter_and_popularity_mixes_in(page):
    page.find("#topics li:nth-child(3) button").click()
    page.wait(lambda: len(page.titles()) == 4)
    assert len(set(page.texts(".kicker"))) == 1
    page.find("#topics li:first-child button").click()
    page.wait(lambda: len(page.titles()) == 12)
    page.find("#varied").click()
    page.find("#popularity").send_keys(Keys.END)
    page.wait(
        lambda: page.titles()[:2] == ["Deep sea mapped", "New telescope sees far"]
    )  # N12 and N11, most clicked


def test_an_error_is_shown_and_can_be_tried_again(page, service, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of order")

    with monkeypatch.context() as broken:
        broken.setattr(service.feed, "recommend", fail)
        page.find(".story h3 button").click()
        page.wait(page.problem)
        assert "Something went wrong here" in page.problem()
        assert "out of order" not in page.problem()
    page.find("#problem button").click()
    page.wait(lambda: not page.problem() and len(page.titles()) == 11)


def test_a_service_that_does_not_answer_is_reported(browser, service):
    with served(service) as address:
        page = Page(browser, address)
    page.find(".story h3 button").click()
    page.wait(page.problem)
    assert "does not answer" in page.problem()


def test_publishing_asks_for_the_token_until_it_is_right(browser, service):
    with served(service, token="right") as address:
        page = Page(browser, address)
        page.find("#headline").send_keys("Nobody may say this yet")
        page.find("#add button").click()
        for token in ("wrong", "right"):
            page.wait(lambda: page.find("#token").is_displayed() and not page.find("#token").get_property("value"))
            page.find("#token").send_keys(token)
            page.find("#token-dialog button.primary").click()
        page.wait(lambda: "Published." in page.find("#published").text)
    assert len(service.feed.catalogue) == 13


def test_everything_by_keyboard(page):
    page.press("j", "j")
    title = page.titles()[1]
    assert page.browser.switch_to.active_element.text == title
    page.press(Keys.ENTER)
    page.wait(lambda: page.texts("#history li span") == [title])
    page.wait(lambda: title not in page.titles())
    assert page.browser.switch_to.active_element.text in page.titles()  # the focus is not lost
    page.press("u")
    page.wait(lambda: title in page.titles())
    page.press("?")
    page.wait(lambda: page.find("#keys").is_displayed())
    page.press(Keys.ESCAPE)
    page.wait(lambda: not page.find("#keys").is_displayed())
    page.press("n")
    assert page.browser.switch_to.active_element.get_attribute("id") == "headline"


def test_light_and_dark(page):
    colour = "return getComputedStyle(document.body).backgroundColor"
    before = page.browser.execute_script(colour)
    page.find("#theme").click()
    after = page.browser.execute_script(colour)
    assert before != after
    page.browser.refresh()
    page.wait(page.titles)
    assert page.browser.execute_script(colour) == after


def test_a_phone_needs_no_sideways_scrolling(page):
    size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.browser.refresh()
        page.wait(page.titles)
        page.read(1)
        width = "return document.documentElement.scrollWidth"
        assert page.browser.execute_script(width) == 360
        assert page.find(".tabs").is_displayed()
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_other_host_is_contacted_and_the_console_stays_empty(page):
    page.browser.get_log("browser")
    page.browser.get_log("performance")
    page.browser.get(page.address + "docs.html")
    page.wait(lambda: len(page.texts(".route")) > 10)
    page.browser.get(page.address)
    page.wait(page.titles)
    page.read(0)
    urls = [entry for line in page.browser.get_log("performance") for entry in _urls(line["message"])]
    assert len(urls) > 10
    assert {urlsplit(url).netloc for url in urls} == {urlsplit(page.address).netloc}
    assert page.browser.get_log("browser") == []


def test_the_files_of_the_page_name_no_other_host():
    files = [file for file in PAGE.rglob("*") if file.is_file()]
    assert len(files) > 5
    for file in files:
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in text.replace("// ", ""), file


def _urls(message):
    event = json.loads(message)["message"]
    if event["method"] == "Network.requestWillBeSent":
        yield event["params"]["request"]["url"]
