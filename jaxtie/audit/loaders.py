"""What loaders do with a checkpoint, by version, each with its date and the thread that says so; as
of October 2026.
"""

from typing import Literal, NamedTuple

Condition = Literal[
    "tied, different",
    "untied, once",
    "top missing, once",
    "levels disagree",
    "tied, bias",
    "no shared table",
    "index and files",
    "gguf once",
    "packed",
    "shard",
    "one side adapted",
    "both sides adapted",
]


class Loader(NamedTuple):
    """What a loader does under a condition.

    Attributes:
      name, versions: of the loader; some projects are told by date only.
      does: in words.
      date: when the thread said so, year and month.
      thread: below github.com.
    """

    name: str
    versions: str
    does: str
    date: str
    thread: str

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.name} {self.versions}: {self.does} ({self.date}, github.com/{self.thread})"


LOADERS: dict[Condition, tuple[Loader, ...]] = {
    "tied, different": (
        Loader(
            "transformers",
            "4.54 to 4.57",
            "overwrites the output embedding by the input embedding, without a word",
            "2025-12",
            "huggingface/transformers/pull/42612",
        ),
        Loader(
            "transformers",
            "5",
            "keeps both tables, untied, and warns",
            "2026-08",
            "vllm-project/vllm/issues/51063",
        ),
        Loader(
            "vLLM",
            "before pull 51665",
            "skips the stored output embedding",
            "2026-08",
            "vllm-project/vllm/issues/51063",
        ),
        Loader(
            "vLLM",
            "with pull 51665",
            "keeps both tables and warns",
            "2026-08",
            "vllm-project/vllm/pull/51665",
        ),
        Loader(
            "NeMo Automodel",
            "before pull 2511",
            "drops the output embedding when it saves; on resuming the loss jumps",
            "2026-06",
            "NVIDIA-NeMo/Automodel/pull/2511",
        ),
        Loader(
            "Megatron-LM",
            "before pull 7577",
            "may have kept an output table there that no forward pass reads",
            "2026-09",
            "NVIDIA/Megatron-LM/pull/7577",
        ),
    ),
    "untied, once": (
        Loader(
            "transformers",
            "4 and 5",
            "makes an output embedding up at random, and lists it among the missing keys",
            "2026-01",
            "huggingface/transformers/pull/43429",
        ),
        Loader(
            "vLLM",
            "before pull 51665",
            "leaves the output embedding as it is allocated",
            "2026-08",
            "vllm-project/vllm/pull/51665",
        ),
        Loader(
            "vLLM", "with pull 51665", "ties, and warns", "2026-08", "vllm-project/vllm/pull/51665"
        ),
        Loader(
            "llama.cpp",
            "since pull 5824",
            "ties, where the architecture allows it",
            "2024-03",
            "ggml-org/llama.cpp/pull/5824",
        ),
    ),
    "top missing, once": (
        Loader(
            "transformers",
            "5.0 (Mistral 3)",
            "reads the top level alone, and makes an output embedding up",
            "2026-01",
            "huggingface/transformers/pull/43429",
        ),
        Loader(
            "transformers",
            "5 before pull 45857",
            "does not lift the flag from text_config for some vision models",
            "2026-08",
            "huggingface/transformers/pull/45857",
        ),
        Loader(
            "Megatron-Bridge",
            "as of pull 4883",
            "writes no lm_head for embeddings with a prefix of a vision model",
            "2026-07",
            "NVIDIA-NeMo/Megatron-Bridge/pull/4883",
        ),
    ),
    "levels disagree": (
        Loader(
            "vLLM",
            "before pull 51665",
            "takes the top level's word, and skips the stored head where that says tied",
            "2026-08",
            "vllm-project/vllm/issues/51063",
        ),
        Loader(
            "transformers",
            "5 before pull 45857",
            "reads the top level for some vision models, text_config for others",
            "2026-08",
            "huggingface/transformers/pull/45857",
        ),
    ),
    "tied, bias": (
        Loader(
            "vLLM",
            "before pull 46835, its Transformers backend",
            "drops the output bias with the head it skips",
            "2026-06",
            "vllm-project/vllm/pull/46835",
        ),
    ),
    "no shared table": (
        Loader(
            "transformers",
            "5 before pull 48238",
            "fills the encoder's table from lm_head; 4.57 took the decoder's",
            "2026-08",
            "huggingface/transformers/issues/48154",
        ),
    ),
    "index and files": (
        Loader(
            "llama.cpp",
            "its converter",
            "stops at a name of the index that no file has",
            "2025-03",
            "ggml-org/llama.cpp/pull/12456",
        ),
    ),
    "gguf once": (
        Loader(
            "llama.cpp",
            "before pull 12456, gpt2, bloom and codeshell",
            "stops: missing tensor 'output.weight'",
            "2025-03",
            "ggml-org/llama.cpp/issues/12567",
        ),
        Loader(
            "llama.cpp",
            "since",
            "takes token_embd.weight for the output",
            "2025-03",
            "ggml-org/llama.cpp/pull/12456",
        ),
    ),
    "packed": (
        Loader(
            "llm-compressor",
            "before pull 2835",
            "writes a packed head beside an equal packed embedding",
            "2026-06",
            "vllm-project/llm-compressor/pull/2835",
        ),
    ),
    "shard": (
        Loader(
            "PyTorch FSDP2",
            "with tied tables in two groups",
            "never updates the last rank's rows if they are fewer",
            "2026-02",
            "pytorch/pytorch/issues/176076",
        ),
    ),
    "one side adapted": (
        Loader(
            "PEFT",
            "without ensure_weight_tying",
            "merges into the table that both ends share",
            "2024-08",
            "huggingface/peft/issues/2018",
        ),
    ),
    "both sides adapted": (
        Loader(
            "PEFT, then transformers 4",
            "after merge_and_unload",
            "leaves the flag as it was; one of the two tables is lost "
            "when the model is loaded again",
            "2026-03",
            "huggingface/transformers/issues/45127",
        ),
    ),
}
