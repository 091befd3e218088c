"""A comparison's headline, sentence, figures and warnings, which are the same on every surface."""

import json
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from rich.console import Console

from specdemo.cli.terminal import print_figures
from specdemo.exports import schema
from specdemo.records import SIDES, Comparison, DraftCounts, Round, SettingsUpdate, Turn, WarmUp
from specdemo.results.estimate import Speedup
from specdemo.results.summary import Summary, expectation, headline_of, summarise, times
from specdemo.results.warnings import disturbed, find_warnings
from specdemo.results.words import is_chat, run_words, shared_words
from specdemo.settings import GenerationSettings
from tests.support.machines import simulated
from tests.support.proposals import compared
from tests.support.random_records import comparisons
from tests.support.scripted import ScriptedEngine
from tests.support.step_costs import costs_of

LONG: dict[str, Any] = {"ignore_eos": True, "max_new_tokens": 65}
OPEN = "It is unclear which side is faster: expect "
COSTS = costs_of(draft=0.001, verify=(0.01, 0.011, 0.012, 0.013, 0.014))


def said(comparison: Comparison, **changed: Any) -> Summary:
    return summarise(comparison.model_copy(update=changed))


def kinds(comparison: Comparison, **changed: Any) -> list[str]:
    return [warning.kind for warning in said(comparison, **changed).warnings]


@pytest.mark.parametrize(
    ("interval", "load", "headline", "words"),
    [
        ((1.41, 1.22, 1.63), 0.0, "1.4× faster", "Expect 1.2× to 1.6× faster."),
        ((0.71, 0.6, 0.8), None, "1.4× slower", "Expect 1.2× to 1.7× slower."),
        ((1.08, 1.05, 1.11), 0.1, "1.08× faster", "Expect 1.05× to 1.11× faster."),
        ((1.3, 1.001, 1.6), 0.1, "1.3× faster", "Expect up to 1.6× faster."),
        ((0.8, 0.7, 0.999), 0.1, "1.2× slower", "Expect up to 1.4× slower."),
        ((1.001, 0.96, 1.04), 0.1, "Equally fast", OPEN + "1.04× slower to 1.04× faster."),
        (
            (1.5, 1.2, 1.9),
            0.35,
            "1.5× faster",
            "Other programs took 35 % of the processor: expect 1.2× to 1.9× faster without them.",
        ),
        (
            (1.5, 0.9, 2.1),
            0.77,
            "1.5× faster",
            "Other programs took 77 % of the processor, so it is unclear which side is faster: expect 1.11× slower "
            "to 2.1× faster without them.",
        ),
        ((0.98, 0.9, 1.07), 0.01, "1.02× slower", OPEN + "1.11× slower to 1.07× faster."),
    ],
)
def test_the_headline_is_the_ratio_and_one_sentence_says_what_to_expect(
    interval: tuple[float, float, float], load: float | None, headline: str, words: str
) -> None:
    found = Speedup(ratio=interval[0], low=interval[1], high=interval[2], other_load=load)
    assert (headline_of(found.ratio), expectation(found)) == (headline, words)
    assert times(0.5) == times(2) == "2.0×"


def test_figures_sentence_bars_and_headline_agree_to_the_last_digit() -> None:
    """64 tokens in 13 rounds of 0.112 s, of which drafting takes 0.008, beside plain steps of 0.1 s."""
    found = summarise(compared(ScriptedEngine(wrong=(4,), step=0.1), **LONG))
    assert (found.headline, found.pooled) == ("4.4× faster", "in this race")
    assert found.sentence == "Each round writes 4.92 tokens, plain decoding 1.12 in that time."
    assert found.seconds == pytest.approx({"plain": 6.4, "speculative": 1.456})
    assert "plain decoding took 6.40 s and speculative 1.46 s: 4.40× (95 % interval 3.98–4.86)." in found.why[0]
    assert [(each.name, each.plain, each.speculative) for each in found.figures] == [
        ("speedup", "", "4.40× (95 % interval 3.98–4.86)"),
        ("tokens/s", "10.00", "43.96"),
        ("time per output token (TPOT)", "100.00 ms", "22.75 ms"),
        ("time to first token (TTFT)", "50.00 ms", "50.00 ms"),
        ("acceptance rate α", "", "0.98"),
        ("mean acceptance length τ", "1.00", "4.92"),
        ("acceptance by position i", "", "100 % · 100 % · 100 % · 92 %"),
        ("draft cost c", "", "0.020"),
        ("drafting d(4)", "", "0.080"),
        ("verify cost v(5)", "", "1.040"),
    ]


def test_repeats_are_named_and_so_is_a_race_that_looked_different() -> None:
    raced = simulated("crowded", 1.5, seed=6, repeats=2)
    alone, pooled = said(raced, repeats=()), summarise(raced)
    assert alone.headline != pooled.headline
    assert pooled.pooled == f"in the race and 2 repeats; {alone.headline} in the race alone"
    assert pooled.line == f"{pooled.headline} {pooled.pooled}. {pooled.expectation}"
    quiet = simulated("quiet", 1.5, seed=6, repeats=1)
    assert summarise(quiet).pooled == "in the race and 1 repeat"


def test_beside_other_programs_counts_are_shown_and_advice_is_given_once() -> None:
    comparison = compared(ScriptedEngine(wrong=(5,)), num_assistant_tokens=2)
    found = said(comparison, other_load=0.6, costs=COSTS)
    assert found.certain == "Independent of timing, the target ran 3 times instead of 8."
    assert [each.kind for each in found.warnings] == ["disturbed"]
    assert " ".join([*found.why, found.sentence]).count("Close what you can") == 1
    assert summarise(comparison).certain == found.certain  # nine tokens
    assert summarise(compared(ScriptedEngine(), **LONG)).certain == ""


def test_what_rounds_accepted_is_said_by_counts() -> None:
    wrong = compared(ScriptedEngine(wrong=range(99)))  # too short for an interval of its own
    found = summarise(wrong)
    assert found.sentence == "None of the draft's proposals was accepted, so speculation only cost time."
    assert found.certain == "", "as many passes on both sides say nothing"
    nothing = [step.model_copy(update={"proposed": ()}) for step in wrong.speculative.rounds]
    silent = wrong.model_copy(update={"speculative": wrong.speculative.model_copy(update={"rounds": tuple(nothing)})})
    assert summarise(silent).sentence.startswith("The draft proposed nothing")
    lookup = silent.model_copy(update={"settings": GenerationSettings(drafter="lookup")})
    assert summarise(lookup).sentence.startswith("Prompt lookup found nothing to copy")


@pytest.mark.parametrize(
    ("accepted", "sentence"),
    [(None, "For the same tokens plain decoding took"), (51, "Each round writes 4.92 tokens")],
)
def test_a_token_per_chunk_allows_conclusions_about_passes_by_counts_alone(
    accepted: int | None, sentence: str
) -> None:
    """A server may stream one token per chunk while it speculates: its chunks are no passes."""
    raced = compared(ScriptedEngine(step=0.1), **LONG)
    rounds = [
        Round(committed=(token,), seconds=step.seconds / len(step.committed), proposed=None)
        for step in raced.speculative.rounds
        for token in step.committed
    ]
    counts = None if accepted is None else DraftCounts(rounds=13, proposed=52, accepted=accepted)
    changed = {"rounds": tuple(rounds), "passes_known": False, "draft_counts": counts}
    found = said(raced, speculative=raced.speculative.model_copy(update=changed))
    assert found.speedup is not None
    assert found.speedup.ratio == pytest.approx(summarise(raced).speedup.ratio)  # type: ignore[union-attr]
    assert found.sentence.startswith(sentence)
    assert not {warning.kind for warning in found.warnings} & {"unusual", "nothing accepted"}
    assert found.certain == ""


def test_notes_say_which_counts_of_a_server_are_not_the_runs() -> None:
    raced = compared(ScriptedEngine())
    counts = DraftCounts(rounds=1, proposed=2, accepted=1, of_server=True)
    run = raced.speculative.model_copy(update={"hidden_tokens": 3, "draft_counts": counts})
    added = {*said(raced, speculative=run).notes} - {*summarise(raced).notes}
    assert sorted(note.partition(" that")[0] for note in added) == [
        "The server's counts of proposals cover all its requests during this run.",
        "The servers counted 3 tokens",
    ]


def test_the_speedup_of_a_perfect_draft() -> None:
    comparison = compared(ScriptedEngine(), **LONG)
    assert "perfect draft" not in " ".join(summarise(comparison).why)
    assert "would reach 2.8×" in " ".join(said(comparison, costs=COSTS).why)
    short = {"verify": COSTS.verify[:4], "drafting": COSTS.drafting[:4]}  # four proposals ran, three were measured
    for changed in ({"other_load": 0.6}, short):
        known = COSTS.model_copy(update=changed)
        assert "perfect draft" not in " ".join(said(comparison, costs=known).why)


@pytest.mark.parametrize(("rounds", "expected"), [(12, ["nothing accepted"]), (11, [])])
def test_many_rounds_without_an_accepted_proposal_cause_a_warning(rounds: int, expected: list[str]) -> None:
    wrong = compared(ScriptedEngine(wrong=range(99)), ignore_eos=True, max_new_tokens=rounds + 2)
    assert len(wrong.speculative.rounds) == rounds + 1, "the last one proposes nothing"
    assert kinds(wrong) == expected
    server = wrong.settings.model_copy(update={"engine": "server"})
    for warning in find_warnings(wrong.model_copy(update={"settings": server})):
        assert warning.reason.startswith("No proposal was accepted in 12 rounds")
        assert "made for another target" in warning.reason
        assert warning.reason.endswith("Check which draft the server was started with.")


def test_the_obstacle_to_any_gain_is_named() -> None:
    comparison = compared(ScriptedEngine())
    fast, slow = (costs_of(draft=draft, verify=(1.0, 1.1, 1.2)) for draft in (0.1, 0.95))
    assert kinds(comparison, costs=fast) == []
    assert kinds(comparison, costs=costs_of(draft=0, verify=(1, 2))) == ["no gain possible"]  # at most 1×
    (warning,) = find_warnings(comparison.model_copy(update={"costs": slow}))
    assert "a draft step takes 0.95 times as long as a plain step" in warning.reason
    lookup = comparison.settings.model_copy(update={"drafter": "lookup"})
    assert kinds(comparison, costs=slow, settings=lookup) == []
    arithmetic = costs_of(draft=0.06, verify=(1, 2.05, 3.1, 4.1))
    (warning,) = find_warnings(comparison.model_copy(update={"costs": arithmetic}))
    assert "a pass over 4 tokens takes 4.1 times as long as a plain step" in warning.reason


def test_the_gravest_warning_comes_first() -> None:
    comparison = compared(ScriptedEngine(words=(" a", " raven")), ignore_eos=True, max_new_tokens=60)
    slow, unsteady = costs_of((1.0, 1.1, 1.2), 0.95), {"plain": WarmUp(rounds=9, seconds=3, steady=False)}
    expected = ["disturbed", "warming up", "no gain possible", "loop"]
    assert kinds(comparison, other_load=0.9, costs=slow, warm_up=unsteady) == expected


@pytest.mark.parametrize(
    ("reading", "named"),  # seconds of either side, which write for 0.64 and 0.29 s
    [((0.99, 0.99), False), ((1.0, 1.0), True), ((20.0, 9.0), False), ((2.0, 3.5), True)],
)
def test_a_prompt_that_would_change_the_headline_is_named(reading: tuple[float, float], named: bool) -> None:
    comparison = compared(ScriptedEngine(wrong=(4,)), **LONG)
    for side, seconds in zip(SIDES, reading, strict=True):
        run = comparison.side(side)
        prefill = run.prefill.model_copy(update={"seconds": seconds})
        comparison = comparison.model_copy(update={side: run.model_copy(update={"prefill": prefill})})
    assert ("long prompt" in kinds(comparison)) == named
    took = "took 2.0 s plainly and 3.5 s with speculation. With it, the same tokens took 2.6 s and 3.8 s."
    assert any(took in reason for reason in said(comparison).why) == (reading == (2.0, 3.5))


@given(comparisons)
def test_any_record_has_a_summary(comparison: Comparison) -> None:
    """Files are untrusted."""
    found = said(comparison, costs=COSTS)
    assert found.headline
    text = json.dumps(found.to_dict(), allow_nan=False)
    assert json.loads(text)["headline"] == found.headline


def test_page_terminal_and_file_say_the_same() -> None:
    disturbed = simulated("busy", 1.6, seed=3, repeats=4).model_copy(update={"other_load": 0.5})
    found = summarise(disturbed)
    assert found.speedup is not None
    out = StringIO()
    print_figures(Console(file=out, width=300), disturbed, explained=True)
    for words in (found.sentence, found.certain, str(found.speedup), *found.why):
        assert words in out.getvalue()
    written = json.loads(json.dumps(schema.to_json(disturbed)))
    assert written["summary"] == json.loads(json.dumps(found.to_dict()))
    assert written["summary"]["speedup_interval"] == [found.speedup.low, found.speedup.high]
    assert {"chip", "reason"} <= set(written["summary"]["warnings"][0])
    assert summarise(schema.from_json(written)) == found


def test_a_moved_run_is_not_labelled_with_its_first_value() -> None:
    run = compared(ScriptedEngine(), engine="traced", num_assistant_tokens=2)
    assert run_words(run) == f"{run.settings.strategy.description}, {shared_words(run.settings)}"
    updates = [
        SettingsUpdate(round=number, values={"num_assistant_tokens": value}) for number, value in ((2, 6), (4, 3))
    ]
    moved = said(run, settings_updates=tuple(updates))
    assert "lookahead 2 → lookahead 6 → lookahead 3, draft model, traced engine" in moved.made_by
    auto = said(run, settings=GenerationSettings.checked(engine="traced", policy="auto"))
    assert auto.values["strategy"] == "automatic lookahead, ≤\u00a020"


def test_limits_of_warnings_and_of_words() -> None:
    assert disturbed(0.2) == disturbed(None) == ""
    assert disturbed(0.21).startswith("Other programs, including any browser on this machine, took 21 %")
    assert summarise(compared(ScriptedEngine(words=(" a",)))).headline == "Too short to compare"
    base = compared().pair
    chat = base.model_copy(update={"target": base.target.model_copy(update={"chat_template": True})})
    settings = [GenerationSettings(apply_chat_template=applied) for applied in (True, False)]
    assert [is_chat(pair, each) for pair in (base, chat) for each in settings] == [False, False, True, False]
    for words, what in (((" a",), "token, 40"), ((" a", " raven"), "2 tokens, 20")):
        looped = summarise(compared(ScriptedEngine(words=words), ignore_eos=True, max_new_tokens=40)).warnings[-1]
        assert looped.reason.startswith(f"From token 1 on, the output repeats the same {what} times")
    for length, expected in ((1.36, ["unusual"]), (1.37, [])):
        speedup = Speedup(ratio=1.5, low=1.4, high=1.6, tokens_per_round=length)
        assert [warning.kind for warning in find_warnings(compared(), speedup)] == expected


def test_the_costs_of_a_round_are_said_in_plain_steps() -> None:
    raced = compared(ScriptedEngine(wrong=(4,)), **LONG)
    costs = summarise(raced).why[1]
    accepted = "The target accepted 98 % of the draft's proposals."
    draft, check = "A proposal costs 20 % of writing a token plainly", "checking 5 tokens costs 1.4 times as much"
    assert costs == f"{accepted} {draft} and {check}, in this run."
    suffix = GenerationSettings.checked(engine="traced", drafter="suffix")
    assert said(raced, settings=suffix).why[1] == accepted.replace("the draft", "the suffix tree")


PARTED = compared(ScriptedEngine(diverges_at=5)).model_copy(update={"divergence": None})


@pytest.mark.parametrize(
    ("engine", "drafter", "policy", "sampled", "words"),
    [
        ("genai", "model", "constant", True, "The output is biased"),
        ("genai", "lookup", "constant", True, "Both are drawn from the same distribution."),
        ("traced", "model", "constant", True, "at any token. Both are drawn from the same distribution."),
        ("server", "model", "server", True, "so the texts can diverge at any token."),
        ("server", "model", "server", False, "If both servers hold the same weights"),
        ("traced", "model", "constant", False, "Both sides use the same target, but a pass over several"),
    ],
)
def test_the_reason_of_a_difference_follows_from_the_settings(
    engine: Any, drafter: Any, policy: Any, sampled: bool, words: str
) -> None:
    settings = GenerationSettings(engine=engine, drafter=drafter, policy=policy, do_sample=sampled)
    reason = said(PARTED, settings=settings).why[-1]
    assert reason.startswith(f"Outputs differ from token 6 on{', as random draws do' if sampled else ''}. ")
    assert words in reason
    assert ("Both are drawn" in reason) == ("Both are drawn" in words)


@pytest.mark.parametrize(
    ("weights", "setting", "quantization", "kv_cache", "exact", "noted"),
    [
        ("f16", "auto", "off", "f32", True, False),
        ("f16", "auto", "groups of 32", "f32", True, False),
        ("int8", "auto", "off", "f32", True, True),
        ("int8", "off", "off", "f32", True, True),
        ("int8", "default", "off", "f32", True, False),
        ("int8", "auto", "groups of 32", "f32", False, False),
        ("f16", "auto", "off", "u8", False, False),
    ],
)
def test_precisions_are_named_that_would_avoid_a_difference(
    weights: str, setting: str, quantization: str, kv_cache: str, exact: bool, noted: bool
) -> None:
    used = {"inference_precision": "f32", "kv_cache_precision": kv_cache, "dynamic_quantization": quantization}
    target = PARTED.pair.target.model_copy(update={"weights": weights})
    runtime = PARTED.pair.runtime.model_copy(update={"dynamic_quantization": setting})
    pair = PARTED.pair.model_copy(update={"target": target, "runtime": runtime})
    found = said(PARTED, pair=pair, environment=PARTED.environment.model_copy(update=used))
    assert ("no other precision avoids it" in found.why[-1]) == exact
    assert (f"Inference runs in f32 with a KV cache in {kv_cache};" in found.why[-1]) != exact
    assert any(note.startswith("Activations are not quantized here") for note in found.notes) == noted


TRANSLATED = PARTED.pair.model_copy(update={"translated": True})


@pytest.mark.parametrize(
    ("changed", "notes"),
    [
        ({}, []),
        ({"pair": TRANSLATED}, ["Target and draft have different tokenizers"]),
        ({"pair": TRANSLATED, "settings": GenerationSettings(drafter="lookup")}, []),
        ({"trace_source": "bursts"}, ["Some chunks hold tokens of several rounds"]),
        ({"trace_source": "bursts", "speculative": PARTED.plain}, ["Each chunk holds one token, not a round"]),
        ({"settings_updates": (SettingsUpdate(round=3, values={}),)}, ["Settings were changed in round 3"]),
        ({"history": (Turn(prompt="a", answer="b"),)}, ["Both sides read the same earlier turns"]),
    ],
)
def test_notes_say_what_is_special_about_a_run(changed: dict[str, Any], notes: list[str]) -> None:
    target = PARTED.pair.target.model_copy(update={"weights": "f16"})
    raced = PARTED.model_copy(update=changed)
    pair = raced.pair.model_copy(update={"target": target})
    _, *found = said(raced, pair=pair).notes
    assert [note[: len(words)] for note, words in zip(found, notes, strict=True)] == notes
