"""acme/text.countWords: a small custom tool, whole."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from msgspec import Meta

from toolhub_service.domain.errors.failure import ErrorKind, refuse
from toolhub_service.domain.result import EvidenceType
from toolhub_service.domain.tool import Annotations, Example
from toolhub_service.tools.context import ToolContext
from toolhub_service.tools.tool import Tool, ToolInput, ToolOutput


class WordsIn(ToolInput, frozen=True):
    text: Annotated[str, Meta(description="The text to count in.", max_length=100_000)]
    top: Annotated[int, Meta(description="How many words to return.", ge=1, le=100)] = 10


class WordCount(ToolOutput, frozen=True):
    word: str
    count: int


class WordsOut(ToolOutput, frozen=True):
    words: list[WordCount]
    total_words: int


class CountWords(Tool[WordsIn, WordsOut]):
    """What a constructor takes comes from the configuration."""

    name = "acme/text.countWords"
    description = "Count how often each word occurs in a text; the most frequent first."
    tags = ("text", "statistics")
    annotations = Annotations(read_only=True, idempotent=True)
    examples = (Example("Count the words of a sentence", {"text": "to be or not to be", "top": 2}),)
    In, Out = WordsIn, WordsOut

    def __init__(self, ignore: str = "") -> None:
        self._ignored = frozenset(ignore.split())

    async def run(self, args: WordsIn, context: ToolContext) -> WordsOut:
        words = [word for word in args.text.lower().split() if word not in self._ignored]
        if not words:
            raise refuse(ErrorKind.INVALID_INPUT, "The text has no words to count. Send a text with words.")
        context.proves(EvidenceType.METRIC, "words", f"counted {len(words)} words")
        counted = Counter(words).most_common(args.top)
        return WordsOut(words=[WordCount(word=word, count=count) for word, count in counted], total_words=len(words))
