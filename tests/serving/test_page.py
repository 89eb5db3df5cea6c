"""The page in a real browser: the feed, one story, publishing, errors, keyboard; no other host is contacted."""

import json
import shlex
from urllib.parse import urlsplit

import pytest
from selenium.webdriver.common.keys import Keys

from speedyfeed.serving.journal import News
from speedyfeed.serving.query import Query
from speedyfeed.serving.routes.page import PAGE
from speedyfeed.serving.service import Service
from tests.serving.browser import Page, served, start_browser
from tests.serving.small_run import body_of


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = start_browser(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.quit()


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


def test_reading_reranks_the_feed_and_every_story_says_why(page):
    before = page.titles()
    assert len(before) == 12
    title = page.read(3)
    after = page.titles()
    assert after[3] == title  # where it was, so that the eye finds its place
    assert after != before
    assert page.history() == [title]
    reasons = page.texts(".story .why em")
    assert reasons
    assert set(reasons) == {title}
    assert all("% alike" in text and "% of your taste" in text for text in page.texts(".story .summary"))
    page.find("#varied").click()
    page.wait(lambda: title not in page.titles())  # a new list has no place for what was read


def test_a_story_opens_with_all_there_is_to_it(page):
    first = page.read(5)
    title = page.open(1)
    assert page.texts("#story-text .standfirst") == [f"More about: {title}"]
    paragraphs = page.texts("#story-text .body")
    assert len(paragraphs) == 2
    assert " ".join(paragraphs) == body_of(title)
    assert page.texts("#story-text .topic")[0] in ("sport", "money", "science")
    assert page.texts("#story-text .age") in (["May 1, 2020"], [])  # of one article it is not known
    assert "It is number 2 in your feed" in page.find("#story-why").text
    assert set(page.texts("#story-why em")) <= {first}
    assert len(page.texts("#similar a")) == 4
    assert title not in page.texts("#similar a")
    similar = page.texts("#similar a")[0]
    page.find("#similar a").click()
    page.wait(lambda: page.texts("#story-title") == [similar])
    page.wait(lambda: page.history()[:1] == [similar])
    assert len(page.history()) == 3
    page.browser.back()
    page.wait(lambda: page.texts("#story-title") == [title])


def test_back_returns_to_the_same_place(page, service):
    service.add([News(news_id=f"M{number}", title=f"number {number}") for number in range(40)])
    page.visit("")
    title = page.titles()[15]
    page.run("document.querySelectorAll('.story')[15].scrollIntoView({ block: 'center' })")
    before = page.top(title)
    assert before > 100
    for leave in (page.back, page.browser.back, lambda: page.press(Keys.ESCAPE)):
        assert page.open(15) == title
        leave()
        page.wait(lambda: page.find("#feed").is_displayed())
        assert page.top(title) == pytest.approx(before, abs=2)
        assert page.focused().text == title
        assert page.titles()[15] == title


def test_more_stories_follow_those_that_are_there(page, service):
    service.add([News(news_id=f"M{number}", title=f"number {number}") for number in range(60)])
    page.visit("")
    page.read(15)
    before = page.titles()
    page.find("#more").click()
    page.wait(lambda: len(page.titles()) > len(before))
    assert page.titles()[: len(before)] == before  # and the story just read is among them


def test_a_story_has_an_address_of_its_own(page):
    page.browser.get("about:blank")
    page.visit("#story/N7")
    page.wait(lambda: page.texts("#story-title") == ["Shares of the bank recover"])
    page.wait(lambda: page.history() == ["Shares of the bank recover"])
    page.back()
    assert page.find("#feed").is_displayed()


def test_undo_forget_and_a_visit_later(page):
    fresh = page.titles()
    first, second = page.read(0), page.read(1)
    page.browser.refresh()
    page.wait(lambda: len(page.titles()) == 10)
    assert page.history() == [second, first]
    assert page.texts("#reading-title") == ["You read 2 stories"]
    page.find("#undo").click()
    page.wait(lambda: page.history() == [first])
    page.find("#forget").click()
    page.wait(lambda: page.titles() == fresh)
    assert page.find("#welcome").is_displayed()


def test_a_link_carries_a_history_and_leaves_the_own_one_alone(page):
    own = page.read(0)
    link = page.copied("#link-copy button")
    assert link.startswith(page.address + "?history=N")
    page.visit("?history=N9&history=nowhere&history=N2")
    assert page.history() == ["Cup final moved to Sunday", "Probe lands on the moon"]
    assert "shared list of 2 stories" in page.find("#shared").text
    page.find("#shared a").click()
    page.wait(lambda: page.history() == [own])
    assert not page.find("#shared").is_displayed()


def test_publishing_is_answered_in_the_same_place(page, service):
    page.read(0)
    page.publish("Cup comes <b>home</b> at last")
    page.wait(lambda: page.find("#publish-title").text == "Published")
    assert "in your feed" in page.find("#published").text
    assert len(page.texts("#published li")) == 3
    box = page.find("#published").rect
    assert 0 < box["y"] < box["y"] + box["height"] < page.run("return innerHeight")
    assert page.focused().text == "Show it"
    page.press(Keys.ENTER)
    page.wait(lambda: page.focused().text == "Cup comes <b>home</b> at last")  # as text, never as markup
    assert page.texts(".just-in h3 a") == ["Cup comes <b>home</b> at last"]
    assert "just now" in page.texts(".just-in .age")[0] or "minute" in page.texts(".just-in .age")[0]
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
    page.publish(_low_title(service))
    page.wait(lambda: page.find("#publish-title").text == "Published")
    page.press(Keys.ENTER)
    page.wait(lambda: len(page.texts(".just-in")) == 1)
    assert len(page.titles()) > 21


def test_publishing_asks_for_the_token_until_it_is_right(browser, service):
    with served(service, token="right") as address:
        page = Page(browser, address)
        page.publish("Nobody may say this yet")
        for token in ("wrong", "right"):
            page.wait(lambda: page.find("#token").is_displayed() and not page.find("#token").get_property("value"))
            page.find("#token").send_keys(token)
            page.find("#token-dialog button.primary").click()
        page.wait(lambda: page.find("#publish-title").text == "Published")
    assert len(service.feed.catalogue) == 13


def test_topics_popularity_and_freshness_change_the_list(page):
    page.find("#topics li:nth-child(3) button").click()
    page.wait(lambda: len(page.titles()) == 4)
    assert len(set(page.texts(".story .topic"))) == 1
    page.find("#topics li:first-child button").click()
    page.wait(lambda: len(page.titles()) == 12)
    page.find("#varied").click()
    page.find("#popularity").send_keys(Keys.END)
    page.wait(lambda: page.titles()[:2] == ["Deep sea mapped", "New telescope sees far"])  # most clicked
    page.find("#popularity").send_keys(Keys.HOME)
    page.find("#freshness").send_keys(Keys.END)
    page.wait(lambda: page.titles()[0] == "Deep sea mapped")  # shown first an hour after the next


def test_clicks_are_kept_for_training_only_when_asked(page, service):
    page.read(0)
    assert service.export_feedback().impressions == 0
    page.find("#keep").click()
    shown = page.titles()
    title = page.open(2)
    page.wait(lambda: service.export_feedback().impressions == 1)
    ((_, feedback),) = list(service._read_feedback())
    titles = {one.news_id: one.title for one in service.feed.all_news()}
    done = {titles[news_id]: action for news_id, action in feedback.actions.items()}
    assert done == {shown[1]: "skip", title: "click"}  # shown[0] is the story read before, not one of the list


def test_the_editor_promotes_and_holds_back_a_story(page, service):
    page.open(4)
    page.find("#editor-actions button").click()
    page.wait(lambda: "The editor promotes this story" in page.find("#story-why").text)
    assert [rule.kind for rule in service.rules().all] == ["boost"]
    page.find("#editor-actions button").click()
    page.wait(lambda: not service.rules().all)


def test_every_action_is_copied_as_a_command_that_works(page, service):
    page.open(0)
    buttons = {
        "#feed-copy button": "/v1/recommend",
        "#why-copy button": "/v1/why?news=",
        "#similar-copy button": "/similar?k=4",
        "#editor-actions .copy": "/v1/rules",
        "#keep-copy button": "/v1/feedback",
        "#publish-copy button": "/v1/news",
    }
    for selector, path in buttons.items():
        curl, *words = shlex.split(page.copied(selector))
        assert (curl, words[0]) == ("curl", "-s")
        assert words[1].startswith(page.address)
        assert path in words[1]
        if "-d" in words:
            assert json.loads(words[words.index("-d") + 1])
    page.find("#back").click()
    page.publish("It's a quote")
    page.wait(lambda: page.find("#published").is_displayed())
    page.run("document.getElementById('headline').value = \"It's one\"")
    words = shlex.split(page.copied("#publish-copy button"))
    assert json.loads(words[-1])["news"][0]["title"] == "It's one"
    assert "authorization: Bearer $SPEEDYFEED_TOKEN" in words  # by name: no secret is copied


def test_an_error_is_shown_and_can_be_tried_again(page, service, monkeypatch):
    def fail(*_):
        raise RuntimeError("out of order")

    with monkeypatch.context() as broken:
        broken.setattr(service.feed, "why", fail)
        page.find(".story h3 a").click()
        page.wait(page.problem)
        assert "Something went wrong here" in page.problem()
        assert "out of order" not in page.problem()
    page.find("#problem button").click()
    page.wait(lambda: not page.problem() and len(page.history()) == 1)


def test_a_service_that_does_not_answer_is_reported(browser, service):
    with served(service) as address:
        page = Page(browser, address)
    page.find(".story h3 a").click()
    page.wait(page.problem)
    assert "does not answer" in page.problem()


def test_two_runs_side_by_side(browser, service, another_run, tmp_path):
    other = Service(another_run, tmp_path / "other")
    other.open()
    try:
        with served(service, others={"second": other}) as address:
            page = Page(browser, address)
            page.read(0)
            page.find("#compare").click()
            page.wait(lambda: page.count(".lists section") == 2)
            assert page.texts(".lists h2") == ["this run", "second"]
            assert page.texts(".lists code") == [service.feed.fingerprint, other.feed.fingerprint]
            lists = [page.texts(f".lists section:nth-child({number}) h3") for number in (1, 2)]
            assert [len(one) for one in lists] == [11, 11]
            assert lists[0] != lists[1]
            assert "someone who read 1 story" in page.find("#said").text
            page.browser.get(address + "compare?other=third")
            page.wait(lambda: "No run “third”" in page.find("#problem").text)
    finally:
        other.close()


def test_one_run_has_nothing_to_compare_with(page):
    assert not page.find("#compare").is_displayed()
    page.browser.get(page.address + "compare?other=x")
    page.wait(lambda: "Only one run is served here" in page.find("#problem").text)


def test_no_other_host_is_contacted_and_the_console_stays_empty(page):
    page.browser.get_log("browser")
    page.browser.get_log("performance")
    page.browser.get(page.address + "docs.html")
    page.wait(lambda: len(page.texts(".route")) > 10)
    page.visit("")
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
