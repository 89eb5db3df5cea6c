"""The news encoder of a saved recommender as a model of sentence-transformers: texts in, article embeddings out.

    model = SentenceTransformer("saved", trust_remote_code=True)
    model.encode(["Late goal wins the cup"])                       # what Recommender.encode_news gives

sentence-transformers finds this module through `modules.json`, which `save_pretrained` writes, and asks for
`trust_remote_code`, because the class is not its own; no code is downloaded. Texts are prepared as in training, so
refinement, segments and frequencies are those of the recommender. Texts have no category.
"""

from collections.abc import Sequence
from typing import Any

from sentence_transformers.base.modules import InputModule

from speedyfeed.models.packed import Article
from speedyfeed.pretrained import Recommender


class NewsTexts(InputModule):  # type: ignore[misc]  # an extra, which need not be installed
    """The news encoder of a recommender, as the one module of a `SentenceTransformer`; it can be trained there.

    >>> SentenceTransformer(modules=[NewsTexts(Recommender.from_pretrained("runs/first"))])
    """

    def __init__(self, recommender: Recommender) -> None:
        super().__init__()
        self.news = recommender.news
        self._saved = (recommender,)  # in a tuple: what it has beside the news encoder is no part of this module

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of the news encoder."""
        return self.news.tokenizer

    @property
    def max_seq_length(self) -> int:
        """Maximum number of tokens in a segment of text."""
        return self.news.segment_length

    def get_embedding_dimension(self) -> int:
        """Width of an article embedding."""
        return self.news.dim

    def preprocess(self, inputs: Sequence[Article], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Pack texts like the training data; each is a title, or title, abstract and body in order or by name."""
        texts = [prompt + text if prompt and isinstance(text, str) else text for text in inputs]
        return {"news": self.news.pack(texts)}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Encode packed texts to `sentence_embedding`, (texts, width)."""
        return features | {"sentence_embedding": self.news(features["news"])}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write the whole recommender, so that `Recommender.from_pretrained` loads the folder, too."""
        self._saved[0].save_pretrained(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, **_: Any) -> "NewsTexts":
        """Load the news encoder of a folder that `save_pretrained` wrote, or of a recommender on the Hub."""
        return cls(Recommender.from_pretrained(model_name_or_path))
