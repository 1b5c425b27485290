"""A baseline for text classification without a neural network: logistic regression on character
n-grams.

python benchmarks/nsmc_baseline.py DATA/nsmc_raw_sentiment
python benchmarks/nsmc_baseline.py DATA/sst2 --columns 1 0 --test dev.tsv.xz

Needs scikit-learn. Reads the files of recipes/nsmc_bert.yaml or recipes/sst2_bert.yaml; prints one
line of JSON.
"""

import argparse
import json
import time
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from transduct.data.sources import TextSource
from transduct.data.text import read_rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", default="train.tsv.xz")
    parser.add_argument("--test", default="test.tsv.xz")
    parser.add_argument(
        "--columns", type=int, nargs=2, default=[2, 1], help="of the text and of the label"
    )
    parser.add_argument("--longest", type=int, default=4, help="characters of the longest n-gram")
    arguments = parser.parse_args()

    def read(name: str) -> tuple[list[str], list[str]]:
        texts, labels = zip(
            *read_rows(TextSource(pairs=name, columns=arguments.columns), arguments.folder)
        )
        return list(texts), list(labels)

    (texts, labels), (test_texts, test_labels) = read(arguments.train), read(arguments.test)
    began = time.perf_counter()
    n_grams = TfidfVectorizer(
        analyzer="char", ngram_range=(1, arguments.longest), min_df=2, sublinear_tf=True
    )
    model = make_pipeline(n_grams, LogisticRegression(C=4.0, max_iter=200)).fit(texts, labels)
    result = {
        "accuracy": round(100 * model.score(test_texts, test_labels), 2),
        "test": len(test_texts),
        "n_grams": len(n_grams.vocabulary_),
        "seconds": round(time.perf_counter() - began),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
