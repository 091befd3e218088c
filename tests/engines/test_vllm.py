"""Streams recorded from vLLM 0.32 with n-gram speculation, damaged variants of them, and other servers' reports."""

import json
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from specdemo.engines.base import rounds_of
from specdemo.errors import ServerError
from specdemo.experiments.concurrent import run_block
from specdemo.models.catalogue import pair_settings
from specdemo.records import Comparison, DraftCounts, Request, Run
from specdemo.results import metrics
from tests.engines.test_server_answers import answered, compare, engine_of
from tests.support.fake_server import CHAT, EVENTS, USAGE, Answer, answers

FOLDER = Path(__file__).parents[1] / "fixtures/vllm"
Events = list[dict[str, Any]]


def recorded(name: str) -> Events:
    lines = (FOLDER / f"{name}.txt").read_text().splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


ALONE = [event["choices"][0] for event in recorded("plain") + recorded("chat") if event["choices"]]
TEXTS = {one["token_ids"][0]: one["delta"]["content"] for one in ALONE if len(one.get("token_ids", ())) == 1}
TEXTS |= {1: "<|im_start|>", 2: "<|im_end|>", 4093: "user"}


def vllm(events: Events) -> Callable[[str, dict[str, Any]], Answer | None]:
    listed = {"data": [{"id": "smollm2", "owned_by": "vllm", "max_model_len": 2048}]}
    fixed = {"/v1/models": Answer(listed), "/version": Answer({"version": "0.32.0"})}
    fixed |= {CHAT: Answer(stream=events, broken=True), "/v1/completions": Answer(stream=events)}

    def answer(path: str, body: dict[str, Any]) -> Answer | None:
        return Answer({"prompt": TEXTS[body["tokens"][0]]}) if path == "/detokenize" else fixed.get(path)

    return answer


def answer_of(events: Any) -> Run:
    with engine_of(None, answers(*events, "[DONE]")) as engine:
        return answered(engine)


def raced(events: Events, **chosen: Any) -> Comparison:
    return compare(vllm(recorded("plain")), vllm(events), **chosen)


def test_a_chunk_with_token_ids_is_a_round() -> None:
    comparison = raced(recorded("chat"), do_sample=True)
    run, ids = comparison.speculative, [event["choices"][0].get("token_ids", []) for event in recorded("chat")[:-1]]
    assert [step.ids for step in (run.prefill, *run.rounds)] == ids[1:]
    assert [token.text for token in run.rounds[15].committed] == [" help", " you", " with", " your"]
    assert [token.text for token in run.rounds[18].committed] == ["\n", ""], "a special token has no text"
    assert (comparison.trace_source, comparison.environment.device) == ("reported", "vLLM 0.32.0")
    assert run.draft_counts == DraftCounts(rounds=14, proposed=42, accepted=12, by_position=(5, 4, 3))
    assert metrics.acceptance_rate(run) == 12 / 42
    assert metrics.mean_acceptance_length(run) == 47 / 35
    assert metrics.passes_to(comparison) == (47, 35)
    assert metrics.first_divergence(comparison) == 36


def changed(**reported: Any) -> Events:
    events = recorded("chat")
    events[-1]["metrics"]["speculative_decoding"] |= reported
    return events


def joined() -> Events:
    events = recorded("chat")
    first, second = (event["choices"][0] for event in events[3:5])
    second["token_ids"][:0] = first["token_ids"]
    return [*events[:3], *events[4:]]


def within_a_character() -> Events:
    events = recorded("chat")
    for event, text in zip(events[17:19], (" help you with", "é list of fruits."), strict=True):
        event["choices"][0]["delta"]["content"] = text
    return events


def without(event: int, name: str) -> Events:
    events = recorded("chat")
    del (events[event]["choices"] or [events[event]])[0][name]
    return events


def none_accepted() -> Events:
    report = {"num_accepted_draft_tokens": 0, "acceptance_histogram": [14]}
    return [*recorded("plain")[:-1], *changed(**report)[-1:]]


def one_by_one(events: Events) -> Events:
    """Give every token an event of its own, as servers do that detokenize token by token."""
    alone = []
    for event in events[1:-1]:
        delta, ids = event["choices"][0]["delta"], event["choices"][0]["token_ids"]
        texts = [delta["content"], *[""] * len(ids)]
        alone += [{"choices": [{"delta": {"content": text}, "token_ids": [id_]}]} for text, id_ in zip(texts, ids)]  # noqa: B905
    return [events[0], *alone, {"choices": [{"delta": {}, "finish_reason": "length"}]}, events[-1]]


def late() -> Events:
    """Send each text after its ids, as with stop words."""
    events, held = recorded("chat"), ""
    for choice in (event["choices"][0] for event in events[1:-1]):
        held, choice["delta"]["content"] = choice["delta"]["content"], held
    last = {"index": 0, "delta": {"content": held}, "finish_reason": "length", "token_ids": []}
    return [*events[:-1], {"choices": [last]}, events[-1]]


ONCE: dict[str, Any] = {"num_accepted_draft_tokens": 3, "acceptance_histogram": [13, 0, 0, 1]}
BECOMES: dict[str, tuple[Events, str, float | None, int | None]] = {
    "counts": (recorded("chat"), "reported", 12 / 42, 35),
    "none accepted": (none_accepted(), "reported", 0, 47),
    "no metrics": (without(-1, "metrics"), "bursts", None, None),
    "metrics of another form": (changed(num_spec_steps="many"), "bursts", None, None),
    "more accepted than proposed": (changed(num_draft_tokens=11), "bursts", None, None),
    "more steps than a run has": (changed(num_spec_steps=10**9), "bursts", None, None),
    "a chunk that ends inside a character": (within_a_character(), "reported", 12 / 42, 35),
    "texts after their ids": (late(), "reported", 12 / 42, 35),
    "joined chunks": (joined(), "bursts", 12 / 42, 35),
    "joined, with other counts": (changed(acceptance_histogram=[9, 2, 0, 3]), "bursts", 12 / 42, 35),
    "a chunk without ids": (without(5, "token_ids"), "bursts", 12 / 42, 35),
    "fewer ids than tokens": (recorded("chat")[:5] + recorded("chat")[6:], "bursts", 12 / 42, 35),
    "a token per chunk": (one_by_one(recorded("chat")), "bursts", 12 / 42, 35),
    "a token per chunk, one pass accepts": (one_by_one(changed(**ONCE)), "bursts", 3 / 42, 44),
    "a token per chunk, without counts": (one_by_one(without(-1, "metrics")), "bursts", None, None),
}


@pytest.mark.parametrize("what", BECOMES)
def test_chunks_are_passes_only_if_counts_confirm_it(what: str) -> None:
    events, source, rate, passes = BECOMES[what]
    comparison = raced(events)
    run = comparison.speculative
    assert (comparison.trace_source, run.passes_known, len(run.tokens)) == (source, source == "reported", 48)
    assert (metrics.acceptance_rate(run), run.passes) == (rate, passes)
    assert run.text == "".join(
        choice["delta"].get("content") or "" for event in events for choice in event["choices"]
    )
    assert comparison.plain.passes == 47, "plain decoding needs no counts"


HISTOGRAM = DraftCounts(rounds=3, proposed=9, accepted=3, by_position=(2, 1))
SGLANG = {"spec_verify_ct": 3, "spec_num_proposed_drafts": 9, "spec_num_correct_drafts": 3}
TENSORRT = {"num_spec_steps": 3, "total_draft_tokens": 9, "total_accepted_draft_tokens": 3}
TENSORRT_CHOICE = {"delta": {}, "speculative_decoding": TENSORRT | {"acceptance_histogram": [1, 1, 1]}}
MLX_VLM = {"draft_rounds": 1, "draft_n": 7, "draft_n_accepted": 6}  # with proposals behind the end of the text
REPORTS: dict[str, tuple[dict[str, Any], DraftCounts]] = {
    "SGLang": ({"sglext": {"spec_tokens_details": SGLANG | {"spec_correct_drafts_histogram": [1, 1, 1]}}}, HISTOGRAM),
    "TensorRT-LLM": ({"choices": [TENSORRT_CHOICE]}, HISTOGRAM),
    "mlx-vlm": ({"timings": MLX_VLM}, DraftCounts(rounds=1, proposed=7, accepted=6, of_server=True)),
    "llama.cpp": ({"timings": {"draft_n": 8, "draft_n_accepted": 4}}, DraftCounts(rounds=2, proposed=8, accepted=4)),
}  # fmt: skip


@pytest.mark.parametrize("server", REPORTS)
def test_counts_are_read_in_every_servers_form(server: str) -> None:
    report, counts = REPORTS[server]
    run = answer_of((*EVENTS[:5], report, USAGE))
    assert (run.draft_counts, run.passes, run.passes_known) == (counts, counts.rounds, False)


HIDDEN: dict[str, tuple[dict[str, Any], int]] = {
    "thoughts": ({"completion_tokens_details": {"reasoning_tokens": 50}}, 50),
    "SGLang's": ({"reasoning_tokens": 50}, 50),
    "more than there are": ({"completion_tokens_details": {"reasoning_tokens": 10**5}}, 56),
    "more than any answer has": ({"completion_tokens_details": {"reasoning_tokens": 2**31}}, 0),
    "none": ({"completion_tokens_details": None}, 0),
}


@pytest.mark.parametrize("what", HIDDEN)
def test_tokens_that_were_never_sent_are_in_no_rate(what: str) -> None:
    details, hidden = HIDDEN[what]
    events = *EVENTS[:5], {"choices": [], "usage": {"completion_tokens": 57, **details}}
    run = answer_of(events)
    assert (run.hidden_tokens, len(run.tokens)) == (hidden, max(57 - hidden, 4))
    if "thoughts" in what:
        thought = answer_of(({"choices": [{"delta": {"reasoning_content": "Well"}}]}, *events))
        assert (thought.hidden_tokens, len(thought.tokens)) == (0, 57), "these thoughts were sent"


def test_the_last_pass_may_accept_more_than_an_average_one_proposed() -> None:
    counts = {"num_spec_steps": 2, "num_draft_tokens": 9, "num_accepted_draft_tokens": 9}
    report = {**counts, "acceptance_histogram": [0, 1, *[0] * 6, 1]}
    chunks: Events = [{"choices": [{"delta": {"content": "x"}, "token_ids": ids}]} for ids in ([1], [2, 3], [4])]
    end = {"choices": [], "usage": {"completion_tokens": 4}, "metrics": {"speculative_decoding": report}}
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    run = raced([*chunks, end]).speculative
    assert (run.passes_known, run.passes, run.draft_counts and run.draft_counts.by_position[-1]) == (True, 2, 1)


def test_a_token_cut_within_a_character_has_no_text_of_its_own() -> None:
    run = raced(within_a_character()).speculative
    assert [token.text for token in run.rounds[15].committed] == [" help", " you", " with", ""]
    assert "".join(token.text for token in run.rounds[16].committed) == "é list of fruits."


def test_several_requests_at_once_have_the_same_sums() -> None:
    with engine_of(None, vllm(recorded("chat"))) as engine:
        request = Request.of("Say", pair_settings(engine.pair))
        with closing(engine.batch(request.strategy)) as batch:
            block = run_block(batch, iter([request] * 2), 2, 2)  # a third could end before the second
    assert block is not None
    trial = block.against(block)
    assert (trial.proposed, trial.accepted, trial.rounds, trial.run_tokens) == (2 * 42, 2 * 12, 2 * 35, 2 * 47)


def test_a_broken_answer_keeps_its_rounds_but_is_refused_in_a_batch() -> None:
    events, several, done = recorded("chat"), recorded("chat")[:3], list[list[int]]()
    several[1]["choices"][0]["index"] = 1
    for streamed, words in ((events[:20], "ended its answer early"), (several, "unknown format")):
        with engine_of(None, vllm(streamed)) as engine:
            rounds = rounds_of(engine.decoder(Request.of("Say", pair_settings(engine.pair))))
            with pytest.raises(ServerError, match=words):
                done += map(attrgetter("ids"), rounds)
    assert done == [event["choices"][0]["token_ids"] for event in events[1:20]]
