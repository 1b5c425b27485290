"""Checks whether a sentence gets the same translation alone, in a batch, and in another order.

python benchmarks/batch_invariance.py MODEL --source test.en.gz [--sentences 1000] [--beam 5]

Translates each sentence alone, all in batches, and all in reverse order in batches of another size.
A difference is excused if the scores of the two outputs lie within 1e-5, where rounding may decide;
these are counted. Also compares the scores with forced decoding. Prints JSON; exits with 1 if a
difference is not excused.
"""

import argparse
import json
import sys
from pathlib import Path

import transduct
from transduct.data.lines import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--beam", type=int, default=5)
    arguments = parser.parse_args()
    translator = transduct.load(arguments.model)
    texts = list(read_lines(arguments.source))[: arguments.sentences]
    alone = [translator.translate([text], beam=arguments.beam)[0] for text in texts]
    batched = translator.translate(texts, beam=arguments.beam)
    reversed_ = translator.translate(texts[::-1], beam=arguments.beam, batch_tokens=1000)[::-1]
    different, excused = 0, 0
    for one, *others in zip(alone, batched, reversed_, strict=True):
        for other in others:
            if one.tokens != other.tokens:
                different += 1
                excused += abs(one.score - other.score) < 1e-5
    forced = translator.score(texts, [found.tokens for found in batched])
    apart = max(abs(f - found.score) for f, found in zip(forced, batched, strict=True))
    result = {
        "sentences": len(texts),
        "beam": arguments.beam,
        "different": different,
        "excused": excused,
        "largest_score_difference_to_forced_decoding": apart,
    }
    print(json.dumps(result))
    sys.exit(different > excused or apart > 1e-4)


if __name__ == "__main__":
    main()
