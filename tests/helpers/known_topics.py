"""Text whose words depend on the topic of the sentence only, and its exact masked model."""

from pathlib import Path

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from jaxtie.text.data import synthetic
from jaxtie.text.data.vocabulary import SPECIAL_TOKENS, vocabulary_file

WORDS, LONG = 50, 5  # words of the vocabulary, and of a sentence


def law_of_topics(seed: int = 0) -> np.ndarray:
    """Draw p(word | topic); ZxW."""
    law_ZxW = np.random.default_rng(seed).gamma(0.7, size=(4, WORDS))
    return law_ZxW / law_ZxW.sum(axis=1, keepdims=True)


def write_topics(
    folder: Path, law_ZxW: np.ndarray, number: int, seed: int = 1
) -> tuple[Path, Path]:
    """Write sentences, a paragraph each, and their vocabulary: two files."""
    rng, names = np.random.default_rng(seed), [synthetic.word_of(word) for word in range(WORDS)]
    topics = rng.integers(0, len(law_ZxW), number)
    drawn = (rng.choice(WORDS, LONG, p=law_ZxW[topic]) for topic in topics)
    text, vocabulary = folder / "topics.txt", folder / "topics-vocab.txt"
    text.write_text("\n\n".join(" ".join(names[word] for word in words) for words in drawn) + "\n")
    vocabulary.write_bytes(vocabulary_file([*SPECIAL_TOKENS, *names]))
    return text, vocabulary


class Logits(nn.Module):
    """An output end whose hidden states are the logits."""

    def logits(self, h_PxV):
        return h_PxV


class LawOfTopics(nn.Module):
    """The exact masked model: the topic by Bayes, then the word; 0 for special tokens."""

    embedding: nn.Module
    law_ZxV: np.ndarray

    def hidden(self, tokens_BxL, at_P):
        law_ZxV = jnp.asarray(self.law_ZxV)
        is_word_BxL = law_ZxV.sum(axis=0)[tokens_BxL] > 0
        logs_BxLxZ = jnp.where(is_word_BxL[..., None], jnp.log(law_ZxV.T[tokens_BxL]), 0)
        topic_BxZ = jnp.exp(logs_BxLxZ.sum(axis=1))
        law_BxV = topic_BxZ @ law_ZxV / topic_BxZ.sum(axis=1, keepdims=True)
        return jnp.log(law_BxV)[at_P // tokens_BxL.shape[1]]
