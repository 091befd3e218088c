"""An EAGLE-3 head on `openvino`: the target's states that it reads, and a sequence that drafts with them.

A head proposes a token from the last token and what the target thought a token before: its residual stream after
three layers, which the product `fc` joins into one state. Of a token that the target has not read yet there are no
such states; the head's own residual stream stands for them. So a head is cut in two, at the output of `fc`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino
from openvino import opset13 as ops

from specdemo.decoding.verification import Logits
from specdemo.errors import PairError
from specdemo.models.graph import layer_ends, seen_layers
from specdemo.runtime.language_model import LanguageModel, ModelSequence
from specdemo.runtime.sequences import Cached, States, Uncached

_LEAST_LAYERS = 10  # of a target: GenAI refuses fewer
_NEVER = np.float32(-2e4)  # the logit of tokens that a head does not know


def show_states(model: openvino.Model) -> None:
    """Give a target a second output: the states that a head reads, [..., 3 * hidden].

    Raises:
        PairError: it has too few layers for a head.
    """
    ends = layer_ends(model)
    if len(ends) < _LEAST_LAYERS:
        raise PairError(
            "An EAGLE-3 head needs a target of at least ten layers; choose the target it was trained for."
        )
    _add_output(model, ops.concat([ends[layer] for layer in seen_layers(len(ends))], -1))


class HeadModel:
    """A compiled head, cut in two."""

    def __init__(self, folder: Path, device: str, properties: dict[str, str], vocabulary: int) -> None:
        """Load a head for a target with so many tokens.

        Raises:
            PairError: it is built in a way that is not known.
            LoadError: OpenVINO cannot load it on this device.
        """
        self._vocabulary = vocabulary
        self._model = LanguageModel(folder, device, properties, adapt=self._cut)
        self._joined = openvino.Core().compile_model(self._fc, device, properties)

    def sequence(self, target: ModelSequence, capacity: int, *, kv_cache: bool = True) -> "HeadSequence":
        """A new, empty sequence beside the target's."""
        assert isinstance(target, Cached | Uncached), "only these keep states"
        return HeadSequence(self._model.cached(capacity), self._joined, target, kv_cache=kv_cache)

    def _cut(self, model: openvino.Model) -> None:
        """Cut `fc` off, take ids and give logits of the target's vocabulary, and give the residual stream as well."""
        given = next((one for one in model.get_parameters() if one.output(0).get_names() == {"hidden_states"}), None)
        ends = layer_ends(model)
        if given is None or not ends:
            raise PairError("The draft is no EAGLE-3 head that is known; choose another.")
        (port,) = given.output(0).get_target_inputs()
        product = port.get_node()
        state = ops.parameter(product.get_output_partial_shape(0), openvino.Type.f32)
        state.set_friendly_name("hidden_states")
        for reader in product.output(0).get_target_inputs():
            reader.replace_source_output(state.output(0))
        model.remove_parameter(given)
        state.output(0).set_names({"hidden_states"})
        model.add_parameters([state])
        self._fc = openvino.Model([ops.result(product)], [given], "fc")
        self._translate(model)
        _add_output(model, ends[-1])

    def _translate(self, model: openvino.Model) -> None:
        """Give logits of the target's tokens: `d2t` holds a token's id there less its id here."""
        logits, map_ = (model.output(name).get_node().input_value(0) for name in ("logits", "d2t"))
        differences = np.array(map_.get_node().data)
        model.remove_result(model.output("d2t").get_node())
        if len(differences) == self._vocabulary and not differences.any():
            return
        places = np.full(self._vocabulary, len(differences))
        own = np.arange(len(differences))
        places[(own + differences)[::-1]] = own[::-1]  # of several for one token the first counts
        padded = ops.pad(logits, [0, 0, 0], [0, 0, 1], "constant", ops.constant(_NEVER))
        whole = ops.gather(padded, ops.constant(places), ops.constant(-1))
        logits.set_names(set())
        whole.output(0).set_names({"logits"})
        model.output(0).get_node().input(0).replace_source_output(whole.output(0))


class HeadSequence:
    """A text as a head reads it, and the head's cache.

    Its entry i is the token i + 1, read with the state of token i: `fc` of what the target thought, where the target
    has read that token, else the head's residual stream after the entry before. Entries of the latter kind are read
    anew once the target knows more.
    """

    def __init__(
        self, own: Cached, joined: openvino.CompiledModel, target: Cached | Uncached, *, kv_cache: bool
    ) -> None:
        self._own, self._target, self._kv_cache = own, target, kv_cache
        self._join = joined.create_infer_request()
        self._true = 0  # entries in the cache that were read with the target's states
        own.reads = self._states

    def logits(self, ids: Sequence[int], last: int = 1, width: int = 0) -> Logits:
        """Logits after each of the last tokens of a text; after more than one only if the target has read them."""
        entries, known = list(ids[1:]), min(self._target.cached.shared(ids), len(ids) - 1)
        kept = max(0, min(self._own.shared(entries), len(entries) - last)) if self._kv_cache else 0
        self._true = min(self._true, kept)
        if known > self._true:
            kept = self._true
        self._own.keep(kept)
        found: Logits = np.zeros((0, 0), np.float32)  # of a text of one token, in which there is nothing to read yet
        if known > kept:
            self._true = known
            found = self._own.logits(entries[:known], min(last, known))
        for end in range(max(known, kept) + 1, len(entries) + 1):
            found = self._own.logits(entries[:end])
        return found

    def read(self, ids: Sequence[int]) -> Iterator[int]:
        """A head is fast: it reads everything at once, when asked for logits."""
        return iter(())

    def shared(self, ids: Sequence[int]) -> int:
        """How many of a text's first tokens are in the cache."""
        return self._own.shared(ids[1:]) + 1

    def _states(self, first: int, last: int) -> States:
        if last > self._true:
            return self._own.states(first - 1, last - 1)
        self._join.infer([self._target.cached.states(first, last)[None]])
        joined: States = self._join.get_output_tensor(0).data[0]
        return joined


def _add_output(model: openvino.Model, node: openvino.Node) -> None:
    model.add_results([ops.result(node)])
