from hypothesis import strategies as st

from specdemo.records import (
    Comparison,
    Costs,
    DraftToken,
    Environment,
    Model,
    ModelPair,
    Outcome,
    Round,
    Run,
    Token,
    Trial,
    Turn,
    outcomes_from_counts,
)
from specdemo.settings import GenerationSettings, RuntimeSettings

probability = st.none() | st.floats(0, 1)
seconds = st.floats(1e-6, 10)
text = st.text(max_size=5)
ids = st.integers(0, 300_000)
tokens = st.builds(Token, id=ids, text=text, probability=probability, entropy=st.none() | st.floats(0, 20))


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Accepted drafts, then one token of the target's own."""
    committed = draw(st.lists(tokens, min_size=1, max_size=5))
    accepted = len(committed) - 1
    outcomes = outcomes_from_counts(accepted + draw(st.integers(0, 4)), accepted)
    refused = [
        DraftToken(id=draw(st.none() | ids), text=draw(text), outcome=outcome) for outcome in outcomes[accepted:]
    ]
    kept = [DraftToken(id=token.id, text=token.text, outcome=Outcome.ACCEPTED) for token in committed[:accepted]]
    proposed = draw(st.none() | st.just((*kept, *refused)))
    return Round(committed=tuple(committed), seconds=draw(seconds), proposed=proposed)


prefills = st.builds(Round, committed=st.tuples(tokens), seconds=seconds)
runs = st.builds(
    Run,
    prefill=prefills,
    rounds=st.lists(rounds(), max_size=6).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "cancelled"]),
)
trials = st.builds(
    Trial,
    tokens=ids,
    seconds=seconds,
    plain_seconds=seconds,
    rounds=ids,
    run_tokens=ids,
    proposed=st.none() | ids,
    accepted=st.none() | ids,
    other_load=probability,
)
models = st.builds(Model, name=text, architecture=text, parameters=ids, weights=text, path=st.none())
comparisons = st.builds(
    Comparison,
    pair=st.builds(ModelPair, name=text, target=models, draft=st.none() | models, runtime=st.just(RuntimeSettings())),
    history=st.lists(st.builds(Turn, prompt=text, answer=text), max_size=2).map(tuple),
    prompt=text,
    settings=st.builds(
        GenerationSettings,
        engine=st.just("traced"),
        drafter=st.just("model"),
        num_assistant_tokens=st.integers(1, 16),
    ),
    environment=st.builds(Environment, threads=st.none() | st.integers(1, 1024)),
    plain=runs,
    speculative=runs,
    other_load=probability,
    repeats=st.lists(trials, max_size=8).map(tuple),
    trace_source=st.sampled_from(["measured", "replayed", "counts only"]),
    costs=st.none()
    | st.builds(Costs, drafting=st.lists(seconds).map(tuple), verify=st.lists(seconds, min_size=1).map(tuple)),
)
