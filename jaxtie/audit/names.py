"""How checkpoints call their embeddings, output biases and the flags that say whether they are
tied; each with a source.

A stem is matched against the end of a tensor's name, part by part, whatever stands before it. Parts
are separated by dots or slashes; the last one (`weight`, `embedding`, `kernel`, ...) is a leaf and
belongs to no stem. A number among the parts is
that of a layer: nothing in a layer is a table.
"""

import re
from dataclasses import dataclass

HF = "github.com/huggingface/transformers, src/transformers/models"
KERAS = "github.com/keras-team/keras-hub, layers/modeling/reversible_embedding.py"
GGUF = "github.com/ggml-org/llama.cpp, gguf-py/gguf/tensor_mapping.py"


@dataclass(frozen=True)
class Stem:
    """An end of a table's name.

    Attributes:
      text: its parts, separated by dots.
      models: some that have it.
      source: where it can be looked up.
      loose: so common a word that it counts only where the shape fits the input embedding.
      across: the table lies D×V even where its leaf does not say so.
    """

    text: str
    models: str
    source: str
    loose: bool = False
    across: bool = False


INPUTS = (
    Stem(
        "embed_tokens",
        "Llama, Mistral, Qwen, Gemma, Phi-3, OLMo 2, Granite, vision models",
        f"{HF}/llama/modeling_llama.py",
    ),
    Stem("encoder.embed_tokens", "T5, BART", f"{HF}/t5/modeling_t5.py, _tied_weights_keys"),
    Stem("decoder.embed_tokens", "T5, BART, OPT, Whisper", f"{HF}/whisper/modeling_whisper.py"),
    Stem("shared", "T5, BART", f"{HF}/t5/modeling_t5.py, _tied_weights_keys"),
    Stem("wte", "GPT-2, GPT-J, MPT, OLMo 1, LLaDA", f"{HF}/gpt2/modeling_gpt2.py"),
    Stem("embd.wte", "Phi-1, Phi-2 as first published", GGUF),
    Stem("embed_in", "GPT-NeoX, Pythia", f"{HF}/gpt_neox/modeling_gpt_neox.py"),
    Stem("word_embeddings", "Falcon, BLOOM, BailingMoE, Megatron, ChatGLM", GGUF),
    Stem(
        "embedding.word_embeddings", "Megatron, ChatGLM", "github.com/NVIDIA/Megatron-LM/issues/516"
    ),
    Stem(
        "embeddings.word_embeddings",
        "BERT, RoBERTa, DistilBERT",
        f"{HF}/bert/modeling_bert.py, _tied_weights_keys",
    ),
    Stem("tok_embeddings", "Llama as Meta has it, InternLM 2, torchtitan", GGUF),
    Stem(
        "embeddings.tok_embeddings",
        "ModernBERT",
        f"{HF}/modernbert/modeling_modernbert.py, _tied_weights_keys",
    ),
    Stem("backbone.embeddings", "Mamba", f"{HF}/mamba/modeling_mamba.py"),
    Stem("backbone.embedding", "Mamba as first published", GGUF),
    Stem("rwkv.embeddings", "RWKV", GGUF),
    Stem("transformer.token_embeddings", "OpenELM", GGUF),
    Stem("in_out_embed", "Grok", GGUF),
    Stem("token_embd", "any GGUF", GGUF),
    Stem(
        "token_embedder",
        "T5X, MaxText",
        "github.com/AI-Hypercomputer/maxtext, checkpoint conversion, param_mapping.py",
    ),
    Stem("token_embedding", "KerasHub", KERAS),
    Stem("embedding.input", "jaxtie", "jaxtie/tying/linen.py"),
)
OUTPUTS = (
    Stem("lm_head", "most causal models; T5", f"{HF}/llama/modeling_llama.py"),
    Stem("lm_head.decoder", "RoBERTa", f"{HF}/roberta/modeling_roberta.py"),
    Stem("lm_head.linear", "Phi-1, Phi-2 as first published", GGUF),
    Stem("embed_out", "GPT-NeoX, Pythia", f"{HF}/gpt_neox/modeling_gpt_neox.py"),
    Stem("output_layer", "Megatron, ChatGLM", "github.com/NVIDIA/Megatron-LM/pull/7577"),
    Stem("word_embeddings_for_head", "Persimmon as first published", GGUF),
    Stem("cls.predictions.decoder", "BERT", f"{HF}/bert/modeling_bert.py, _tied_weights_keys"),
    Stem("vocab_projector", "DistilBERT", f"{HF}/distilbert/modeling_distilbert.py"),
    Stem("transformer.ff_out", "OLMo 1, LLaDA", GGUF),
    Stem(
        "proj_out", "Whisper", f"{HF}/whisper/modeling_whisper.py, _tied_weights_keys", loose=True
    ),
    Stem("pred_layer.proj", "XLM", f"{HF}/xlm/modeling_xlm.py, _tied_weights_keys"),
    Stem(
        "decoder",
        "ModernBERT",
        f"{HF}/modernbert/modeling_modernbert.py, _tied_weights_keys",
        loose=True,
    ),
    Stem("output", "Llama as Meta has it, InternLM 2, torchtitan, any GGUF", GGUF, loose=True),
    Stem("head", "RWKV", GGUF, loose=True),
    Stem("head.decoder", "ModernBERT, earlier", GGUF, loose=True),
    Stem(
        "logits_dense",
        "T5X, MaxText",
        "github.com/AI-Hypercomputer/maxtext, checkpoint conversion, param_mapping.py",
    ),
    Stem(
        "reverse_embeddings",
        "KerasHub",
        KERAS,
        across=True,
    ),
    Stem("embedding.output", "jaxtie", "jaxtie/tying/linen.py"),
)
# beside the `bias` of an output stem
BIAS_ENDS = (
    "cls.predictions.bias",
    "final_logits_bias",
    "embedding.bias",
)
LEAVES = frozenset({"weight", "embedding", "embeddings", "kernel", "table"})
PACKED_LEAVES = {
    "qweight": "AutoGPTQ, AutoAWQ",
    "weight_packed": "compressed-tensors",
    "weight_scale": "compressed-tensors, FP8",
    "weight_scale_inv": "FP8 in blocks",
    "SCB": "bitsandbytes",
    "scales": "AutoGPTQ, MLX",
    "qzeros": "AutoGPTQ",
}
NOT_WEIGHTS = frozenset(
    {
        "opt_state",
        "optimizer",
        "optimizer_state",
        "mu",
        "nu",
        "exp_avg",
        "exp_avg_sq",
        "param_states",
    }
)
# of a ReversibleEmbedding, in `.weights.h5` files
KERAS_VARIABLES = {
    "vars.0": "",
    "vars.1": "reverse_embeddings",
}

# A flag -> the value that means tied, and where it is documented.
FLAGS = {
    "tie_word_embeddings": (
        True,
        f"{HF}, every configuration; github.com/huggingface/transformers/pull/6692",
    ),
    "share_embeddings_and_output_weights": (True, "github.com/NVIDIA/Megatron-LM/pull/7577"),
    "untie_embeddings_and_output_weights": (
        False,
        "github.com/deepspeedai/Megatron-DeepSpeed/issues/147",
    ),
    "no_weight_tying": (False, "github.com/EleutherAI/gpt-neox, megatron/model/gpt2_model.py"),
    "weight_tying": (True, "github.com/allenai/OLMo, olmo/config.py"),
    "enable_weight_tying": (True, "github.com/pytorch/torchtitan/pull/2522"),
    "logits_via_embedding": (True, "github.com/AI-Hypercomputer/maxtext, configs/base.yml; T5X"),
    "tie_embeddings": (True, "github.com/Lightning-AI/litgpt/issues/1727; mamba_ssm"),
    "tie_weights": (True, KERAS),
    "tie_embedding_weights": (True, "github.com/keras-team/keras-hub, T5Backbone"),
    "share_decoder_input_output_embed": (
        True,
        "github.com/facebookresearch/fairseq, models/transformer",
    ),
}
# What a configuration class of transformers says where config.json has no flag: configuration_*.py
# of each, 4.x.
DEFAULTS = {
    True: (
        "bart bert bloom camembert cohere cohere2 distilbert electra falcon gemma gemma2"
        " gemma3_text gpt2 gpt_neo gpt_bigcode mamba modernbert mpt opt pegasus roberta starcoder2"
        " t5 whisper xlm-roberta"
    ),
    False: (
        "gpt_neox gptj granite llama mistral mixtral olmo olmo2 phi phi3 qwen2 qwen2_moe qwen3"
        " qwen3_moe stablelm"
    ),
}


def parts_of(name: str) -> list[str]:
    """The parts of a tensor's name, `['x']` and `:0` taken off; of a Keras file its variables by
    their names.
    """
    plain = re.sub(r":\d+$", "", re.sub(r"\[['\"]?([^\]'\"]*)['\"]?\]", r".\1", name))
    for number, word in KERAS_VARIABLES.items():
        plain = re.sub(
            rf"(token_embedding)[./]{number.replace('.', '[./]')}$", rf"\1.{word}", plain
        )
    return [part for part in re.split(r"[./]", plain) if part]


def is_weight(parts: list[str]) -> bool:
    """Whether these are of a name outside of layers and of an optimiser's state."""
    return not any(part.isdigit() or part in NOT_WEIGHTS for part in parts)


def _ends_with(parts: list[str], text: str) -> bool:
    words = text.split(".")
    return parts[-len(words) :] == words


def stem_of(name: str, stems: tuple[Stem, ...]) -> tuple[Stem, str] | None:
    """The longest stem that a name ends with, and its leaf; None if there is none, or it is in a
    layer.
    """
    parts = parts_of(name)
    if not is_weight(parts):
        return None
    last = parts[-1] if parts else ""
    whole = [(parts, "")]
    if last in LEAVES or last in PACKED_LEAVES:
        whole.append((parts[:-1], last))
    found = [(stem, leaf) for ends, leaf in whole for stem in stems if _ends_with(ends, stem.text)]
    return max(found, key=lambda pair: len(pair[0].text), default=None)


def is_bias(name: str) -> bool:
    """Whether a name is that of an output bias."""
    parts = parts_of(name)
    if not is_weight(parts) or not parts:
        return False
    if any(_ends_with(parts, bias) for bias in BIAS_ENDS):
        return True
    stem = stem_of(".".join(parts[:-1]), OUTPUTS) if parts[-1] == "bias" else None
    return stem is not None


def default_of(model_type: object) -> bool | None:
    """Whether transformers ties a model of this type where config.json does not say; None where it
    is not known here.
    """
    return next((tied for tied, types in DEFAULTS.items() if model_type in types.split()), None)
