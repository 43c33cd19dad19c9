"""The page in a browser: what a reader does and sees."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from browser import Browser, Tab
from live import Live

from .conftest import CODE, XSS

Opened = Callable[..., Tab]


def ask(tab: Tab, text: str, wait: bool = True) -> None:
    tab.js("document.querySelector('#chat-prompt').focus()")
    tab.type(text)
    tab.press("Enter")
    if wait:
        tab.until("document.querySelector('#stop').hidden && document.querySelector('.answer')")


def last(selector: str) -> str:
    return f"[...document.querySelectorAll('.answer')].at(-1).querySelector('{selector}')"


def said(tab: Tab) -> str:
    return str(tab.js(f"{last('.said')}.textContent"))


def settle(tab: Tab, **values: object) -> None:
    """Fill in settings as if typed."""
    for name, value in values.items():
        field = f"document.querySelector('#settings-form [name={name}]')"
        key = "checked" if isinstance(value, bool) else "value"
        tab.js(f"{field}.{key} = {json.dumps(value)}, {field}.dispatchEvent(new Event('input', {{bubbles: true}}))")


def race(tab: Tab, text: str) -> None:
    tab.until("!document.querySelector('#race-view').hidden")
    tab.js("document.querySelector('#race-prompt').focus()")
    tab.js("document.querySelector('#race-prompt').value = ''")
    tab.type(text)
    tab.press("Enter")


def test_it_loads_its_own_files_and_nothing_else(live: Live, tab: Opened) -> None:
    page = tab(live.url)
    paths = {r.removeprefix(live.url) for r in page.requests()}
    assert {"/", "/app.js", "/style.css", "/health"} <= paths
    assert page.text("h1")
    assert "automaton" in page.text("#server")
    assert page.js("document.activeElement.id") == "chat-prompt"


def test_an_answer_streams_and_ends(live: Live, tab: Opened) -> None:
    page = tab(live.url)
    settle(page, max_draft=4)  # whether drafts pay here is the machine's affair
    ask(page, "{S1} please")
    assert page.text(".question") == "{S1} please"
    assert said(page) == "The answer is 42, naïve 🙂 reader!"
    assert page.js("document.querySelector('.answer').getAttribute('aria-busy')") == "false"
    assert page.js("document.querySelector('#chat-prompt').value") == ""
    assert "The answer is 42" in page.text("#status")
    figures = {name: page.text(f"[data-figure={name}]") for name in ("speed", "accept", "tokens", "rounds", "first")}
    assert float(figures["accept"]) > 1.5
    assert float(figures["speed"]) > 0
    assert int(figures["rounds"]) < int(figures["tokens"])


def test_thinking_shows_live_and_is_folded_after(serve: Callable[..., Live], tab: Opened) -> None:
    page = tab(serve(verify=0.15).url)
    ask(page, "{S1}", wait=False)
    page.until(f"{last('.thinking')}?.open && {last('.reasoning')}.textContent.length > 3")
    page.until("document.querySelector('#stop').hidden")
    assert page.js(f"{last('.reasoning')}.textContent") == "I think of\nmany things\n"
    assert not page.js(f"{last('.thinking')}.open")
    assert "Thought for" in page.text("summary .thinking-title")
    page.click(".thinking summary")
    assert page.js(f"{last('.thinking')}.open")
    settle(page, thinking=False)
    ask(page, "{S0}")
    assert page.js(f"{last('.thinking')}.hidden")
    assert said(page) == "Fine, no thinking at all."


def test_tokens_are_coloured_by_how_they_came(live: Live, tab: Opened) -> None:
    page = tab(live.url)
    ask(page, "{S1}")
    colours = {}
    for origin in ("drafted", "corrected", "plain"):
        assert page.js(f"document.querySelectorAll('.answer .tokens .{origin}').length") > 0, origin
        colours[origin] = page.js(f"getComputedStyle(document.querySelector('.answer .{origin}')).backgroundColor")
        assert page.text(f".legend .{origin}") == origin
    assert len(set(colours.values())) == 3
    settle(page, max_draft=2)
    ask(page, "{S4}")
    assert page.js("document.querySelectorAll('.turn:last-child .tokens .bonus').length") > 0
    settle(page, colours=False)
    plain = page.js("getComputedStyle(document.querySelector('.answer .tokens .drafted')).backgroundColor")
    assert plain == "rgba(0, 0, 0, 0)"
    settle(page, mode="baseline")
    ask(page, "{S4}")
    assert (
        page.js("document.querySelectorAll('.turn:last-child .tokens :is(.drafted, .corrected, .bonus)').length") == 0
    )
    assert page.text(".turn:last-child [data-figure=accept]") == "1.00"


def test_code_stands_in_blocks_and_no_character_is_lost(live: Live, tab: Opened) -> None:
    page = tab(live.url)
    ask(page, "{S3}")
    assert said(page) == CODE
    assert page.js(f"{last('.said pre')}.textContent") == "```python\ndef f(n):\n    return n\n```\n"
    assert "That is all." in page.js(f"{last('.said div:last-child')}.textContent")


@pytest.mark.parametrize(("script", "where"), [("{S2}", ".said"), ("{S5}", ".reasoning")])
def test_markup_of_the_model_or_the_reader_stays_text(live: Live, tab: Opened, script: str, where: str) -> None:
    page = tab(live.url)
    ask(page, f"{script} {XSS}")
    assert page.js(f"{last(where)}.textContent") == (XSS if where == ".said" else XSS.replace("x", "y"))
    assert page.js("document.querySelector('.question').textContent").endswith(XSS)
    assert page.js("document.querySelectorAll('#log :is(img, script, b)').length") == 0
    assert page.js("document.title") == "mlx-dspark"


def test_the_policy_forbids_inline_code_and_strings_as_markup(live: Live, tab: Opened) -> None:
    page = tab(live.url, silent=False)
    page.js("document.body.append(Object.assign(document.createElement('i'), {id: 'probe'}))")
    assert page.js("(() => { try { probe.innerHTML = '<b>x</b>' } catch (e) { return e.name } })()") == "TypeError"
    assert page.js("(() => { try { return eval('1') } catch (e) { return e.name } })()") == "EvalError"
    policy = httpx.get(live.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_a_conversation_goes_on_and_starts_anew(live: Live, tab: Opened) -> None:
    page = tab(live.url)
    page.js(
        "window.sent = []; window.real = fetch; window.fetch = (u, o) => (o?.body && sent.push(JSON.parse(o.body)), real(u, o))"
    )
    ask(page, "{S1}")
    ask(page, "{S3}")
    first, second = page.js("sent")
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "user"]
    answer = second["messages"][1]
    assert answer["content"] == "The answer is 42, naïve 🙂 reader!"
    assert answer["reasoning_content"] == "I think of\nmany things\n"
    assert (first["max_tokens"], first["stream"], first["stream_rounds"]) == (512, True, True)
    assert not {"temperature", "seed", "mode", "max_draft", "chat_template_kwargs"} & set(first)
    page.click("#new-chat")
    assert page.js("document.querySelectorAll('.turn').length") == 0
    assert page.text("h1")
    settle(page, temperature=0.5, seed=3, max_draft=1, mode="baseline", thinking=False, max_tokens=20)
    ask(page, "{S0}")
    third = page.js("sent[2]")
    assert len(third["messages"]) == 1
    wanted = {"temperature": 0.5, "seed": 3, "max_draft": 1, "mode": "baseline", "max_tokens": 20}
    assert {k: third[k] for k in wanted} == wanted
    assert third["chat_template_kwargs"] == {"enable_thinking": False}


def test_stop_ends_the_request_and_keeps_what_came(serve: Callable[..., Live], tab: Opened) -> None:
    live = serve(verify=0.1)
    page = tab(live.url)
    for stop in (lambda: page.click("#stop"), lambda: page.press("Escape"), lambda: page.click("#new-chat")):
        ask(page, "{S4}", wait=False)
        page.until(f"{last('.said')}?.textContent.length > 20")
        stop()
        page.until("document.querySelector('#stop').hidden")
        live.idle(5)
        if page.js("document.querySelectorAll('.turn').length"):
            assert "Stopped" in page.js(f"{last('.note')}.innerText")
            assert said(page).startswith("word0 word1")
    assert page.text("h1")


def test_a_full_queue_is_told_and_tried_again(serve: Callable[..., Live], tab: Opened) -> None:
    live = serve(verify=0.1, max_queue=0)
    page = tab(live.url, silent=False)
    long = {"messages": [{"role": "user", "content": "{S4}"}], "stream": True}
    with httpx.stream("POST", f"{live.url}/v1/chat/completions", json=long, timeout=60) as reply:
        parts = reply.iter_text()  # held: dropping it would close the connection
        next(parts)
        ask(page, "{S1}")
        assert "The server is busy" in page.text(".note")
        assert page.js("document.querySelector('.note').getAttribute('role')") == "alert"
    live.idle()
    page.click(".again")
    page.until("document.querySelector('.said').textContent.includes('42')")
    page.until("document.querySelector('#stop').hidden")
    assert page.js("document.querySelectorAll('.turn').length") == 1


def test_a_refused_setting_is_told_in_the_servers_words(serve: Callable[..., Live], tab: Opened) -> None:
    page = tab(serve(max_draft=2).url, silent=False)
    settle(page, max_draft=5)
    ask(page, "{S1}")
    assert "Max_draft is 5, but this server allows 2 at most" in page.text(".note")
    settle(page, max_draft=5, temperature=9)
    ask(page, "{S1}", wait=False)
    assert "Temperature" in page.text("#settings-problem")
    assert page.js("document.querySelectorAll('.turn').length") == 1
    assert page.js("document.querySelector('#chat-prompt').value") == "{S1}"


def test_a_server_that_goes_away_is_told(serve: Callable[..., Live], tab: Opened) -> None:
    live = serve(verify=0.1)
    page = tab(live.url, silent=False)
    ask(page, "{S4}", wait=False)
    page.until(f"{last('.said')}?.textContent.length > 20")
    live.close()
    page.until("document.querySelector('#stop').hidden")
    assert "shutting down" in page.text(".note") or "connection was lost" in page.text(".note")
    assert said(page).startswith("word0 word1")
    ask(page, "{S1}")
    page.until(f"!{last('.note')}.hidden")
    assert "can't be reached" in page.js(f"{last('.note')}.innerText")


def test_a_key_is_asked_for_and_stays_in_the_tab(serve: Callable[..., Live], browser: Browser) -> None:
    live = serve(api_key="sésame")
    page = browser.tab(password="sésame")  # what the reader tells the browser when it asks
    page.open(live.url)
    page.until("document.querySelector('#server')?.textContent")
    ask(page, "{S1}")
    assert said(page) == "The answer is 42, naïve 🙂 reader!"
    assert page.complaints() == []
    page.js("sessionStorage.setItem('mlx-dspark-key', 'an old one')")
    ask(page, "{S1}", wait=False)
    page.until("document.querySelector('#key-dialog').open")
    assert "API key" in page.js(f"{last('.note')}.innerText")
    assert page.js("document.activeElement.id") == "key"
    page.type("sésame")
    page.press("Enter")
    page.until("!document.querySelector('#key-dialog').open")
    page.click(".turn:last-child .again")
    page.until(f"{last('.said')}.textContent.includes('42')")
    assert page.js("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]
    page.close()


def test_a_race_ends_with_the_verdict(live: Live, tab: Opened) -> None:
    page = tab(live.url, view="race")
    for settings in ({"max_draft": 4}, {"temperature": 1.0, "mode": "baseline", "max_draft": 0}):
        settle(page, **settings)
        race(page, "{S1}")
        page.until("!document.querySelector('#verdict').hidden")
        assert page.js("document.querySelector('#verdict').dataset.kind") == "equal"
        assert "character for character" in page.text("#verdict")
        assert "× the speed of plain" in page.text("#verdict")
        texts = page.js("[...document.querySelectorAll('.lane .said')].map(e => e.textContent)")
        assert texts == ["The answer is 42, naïve 🙂 reader!"] * 2
        accept = page.js("[...document.querySelectorAll('.lane [data-figure=accept]')].map(e => +e.textContent)")
        assert accept[1] == 1
        assert accept[0] > 1.5 or not settings["max_draft"]  # unpinned, the machine says whether drafts pay
        assert page.js("[...document.querySelectorAll('.pace-number')].every(e => +e.textContent > 0)")
        assert page.js("document.querySelectorAll('.lane:last-child .tokens .drafted').length") == 0
    page.click("#race-replay")
    page.until("!document.querySelector('#race-replay').hidden")
    assert page.js("[...document.querySelectorAll('.lane .said')].map(e => e.textContent)") == texts
    assert page.js("document.querySelector('#verdict').dataset.kind") == "equal"


def test_a_race_whose_texts_differ_says_so(live: Live, tab: Opened) -> None:
    page = tab(live.url, view="race")
    page.js(
        "window.real = fetch; window.fetch = (u, o) => real(u, o?.body?.includes('baseline')"
        " ? {...o, body: o.body.replace('{S1}', '{S3}')} : o)"
    )
    race(page, "{S1}")
    page.until("!document.querySelector('#verdict').hidden")
    assert page.js("document.querySelector('#verdict').dataset.kind") == "different"
    assert "Different from character 1" in page.text("#verdict")


def test_a_race_can_be_stopped(serve: Callable[..., Live], tab: Opened) -> None:
    live = serve(verify=0.1)
    page = tab(live.url, view="race")
    race(page, "{S4}")
    page.until(f"{last('.said')}?.textContent.length > 20")
    page.click("#race-stop")
    live.idle(5)
    page.until("document.querySelector('#race-stop').hidden")
    assert page.js("document.querySelector('#verdict').hidden")
    assert page.js("document.querySelectorAll('.lane .answer').length") == 1


def test_keys_alone_are_enough(live: Live, tab: Opened) -> None:
    page = tab(live.url)
    page.js("document.querySelector('.brand').focus()")
    reached = []
    for _ in range(9):
        page.press("Tab")
        reached.append(page.js("document.activeElement.id || document.activeElement.textContent.trim()"))
    assert reached[:4] == ["Chat", "Race", "Settings", "log"]
    assert "chat-prompt" in reached
    page.js("document.querySelector('#settings summary').focus()")
    page.press("Enter")
    page.until("document.querySelector('#settings').open")
    page.press("Escape")
    page.until("!document.querySelector('#settings').open")
    page.js("document.querySelector('#chat-prompt').focus()")
    page.type("one")
    page.press("Enter", shift=True)
    page.type("two")
    assert page.js("document.querySelectorAll('.turn').length") == 0
    assert page.js(
        "[...document.querySelectorAll('button, input, select, textarea')].every(e => e.textContent.trim() || e.labels?.length)"
    )


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_is_wider_than_the_screen(live: Live, tab: Opened, width: int) -> None:
    page = tab(live.url, width=width, height=700)
    fits = "[document.documentElement, ...document.querySelectorAll('#log, #race-view')].every(e => e.scrollWidth <= e.clientWidth + 1)"
    assert page.js(fits)
    assert page.js("document.documentElement.scrollHeight <= innerHeight"), "views scroll, the page does not"
    for prompt in ("{S3}", "{S6} " + "x" * 300):
        ask(page, prompt)
        assert page.js(fits)
    page.click("#settings summary")
    assert page.js(
        f"(r => r.left >= 0 && r.right <= {width})(document.querySelector('.panel').getBoundingClientRect())"
    )
    page.press("Escape")
    page.click("nav a[data-view=race]")
    race(page, "{S6}")
    page.until("!document.querySelector('#verdict').hidden")
    assert page.js(fits)


def test_dark_where_the_reader_wants_dark(live: Live, tab: Opened) -> None:
    def lightness(page: Tab, selector: str, key: str) -> float:
        rgb = page.js(f"getComputedStyle(document.querySelector('{selector}')).{key}.match(/[\\d.]+/g).map(Number)")
        return sum(rgb[:3]) / 3

    for dark in (False, True):
        page = tab(live.url, dark=dark)
        ask(page, "{S4}")
        back, ink = lightness(page, "body", "backgroundColor"), lightness(page, "body", "color")
        assert (back < 60 and ink > 200) if dark else (back > 230 and ink < 60)
        token, ink = (
            lightness(page, ".answer .drafted", "backgroundColor"),
            lightness(page, ".answer .drafted", "color"),
        )
        assert abs(token - ink) > 120
