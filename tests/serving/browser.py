"""A real browser, and the page as a user sees and operates it."""

import os
import shutil
import threading
import time
from contextlib import contextmanager

import pytest
import uvicorn
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from speedyfeed.serving.app import build_app
from speedyfeed.serving.middleware import WriteAccess

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1360,1000 "
    "--force-prefers-reduced-motion"  # a story on its way to a new place cannot be clicked
)
PATIENCE = 120  # a busy machine is no failure


def start_browser(folder):
    """Start Chromium with its profile in `folder`; skip the test where there is none, unless in CI."""
    if not (BROWSER and DRIVER):
        assert not os.environ.get("CI"), "chromium and chromedriver are needed to test the page"
        pytest.skip("the page is tested in chromium: install chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for switch in SWITCHES.split():
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))


@contextmanager
def served(service, token=None, others=None):
    """Run the service, and yield its address."""
    app = build_app(service, WriteAccess(token, "127.0.0.1"), others=others)
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


class Page:
    """The page as a user sees and operates it."""

    def __init__(self, browser, address):
        self.browser = browser
        self.address = address
        self.visit("")

    def visit(self, path):
        """Open a page of the service and wait for its stories."""
        self.browser.get(self.address + path)
        self.wait(self.titles)

    def wait(self, happened):
        return WebDriverWait(self.browser, PATIENCE, 0.05).until(lambda _: happened())

    def find(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def count(self, selector):
        return len(self.browser.find_elements(By.CSS_SELECTOR, selector))

    def run(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def texts(self, selector):
        """Texts of all matching elements, read by one script so that nothing is redrawn in between."""
        return self.run(
            "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
        )

    def titles(self):
        return self.texts(".story h3 a")

    def history(self):
        """Titles of what was read, latest first."""
        return self.texts("#history li a")

    def open(self, number):
        """Open a story of the feed, wait until it is there and counted as read, and return its title."""
        title = self.titles()[number]
        self.find(f".story:nth-child({number + 1}) h3 a").click()
        self.wait(lambda: self.find("#story").is_displayed())  # the title may be there from the time before
        self.wait(lambda: self.texts("#story-title") == [title] and self.history()[:1] == [title])
        self.wait(lambda: self.find("#feed").get_attribute("aria-busy") == "false")
        return title

    def back(self):
        self.find("#back").click()
        self.wait(lambda: self.find("#feed").is_displayed())

    def read(self, number):
        """Open a story, go back, and return its title."""
        title = self.open(number)
        self.back()
        return title

    def top(self, title):
        """Distance of a story from the top of the window, in pixels."""
        script = (
            "return [...document.querySelectorAll('.story h3 a')].find((one) => one.textContent === arguments[0])"
        )
        return self.run(f"{script}.closest('.story').getBoundingClientRect().top", title)

    def press(self, *keys):
        """Press keys where the focus is."""
        ActionChains(self.browser).send_keys(*keys).perform()

    def focused(self):
        return self.browser.switch_to.active_element

    def copied(self, selector):
        """Press a button that copies, and return what it copied."""
        self.run(
            "window.copied = null; navigator.clipboard.writeText = async (text) => { window.copied = text; };"
            "document.querySelector(arguments[0]).click()",
            selector,
        )
        return self.wait(lambda: self.run("return window.copied"))

    def publish(self, headline):
        self.press("n")
        self.wait(lambda: self.find("#headline").is_displayed())
        self.find("#headline").send_keys(headline)
        self.find("#add .primary").click()

    def problem(self):
        box = self.find("#problem")
        return box.text if box.is_displayed() else ""

    @contextmanager
    def phone(self, width=360, height=740):
        """Show the page as on a phone of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        try:
            yield
        finally:
            self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
