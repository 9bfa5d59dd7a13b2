"""``python -m tests.chaos``: a campaign of faults, which goes on where its log ends.

    python -m tests.chaos --kills 100 --seed 1 [--log FILE.jsonl] [--until HH:MM]
    python -m tests.chaos --kills 20 --world   # in a sweep whose trials have a living world with every part on
    python -m tests.chaos --kills 6 --inside   # in a sweep with rules, compressors, aggregators and privacy
    python -m tests.chaos --kills 6 --asynchronous   # in a living world under an asynchronous cloud
    python -m tests.chaos --kills 10 --population | --search
    python -m tests.chaos --only 17            # one fault again, in a folder that is kept

Each outcome is a line of JSON in the log. The report, as Markdown, stands beside it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

from tests.chaos.campaign import CHAIN, Campaign, Outcome, read_log, report, signal_name
from tests.chaos.fault import draw
from tests.chaos.shim import has_compiler
from tests.chaos.sweep import SWEEPS

KINDS = ("world", "inside", "asynchronous", "population", "search")  # of sweeps/


def main() -> int:
    """Run the command; return 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many kills; the other faults come in addition")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all draws")
    for kind in KINDS:
        parser.add_argument(
            f"--{kind}", dest="kind", action="store_const", const=kind, help=f"break sweeps/{kind}.yaml"
        )
    parser.add_argument("--log", type=Path, help="the log; default hflray_results/chaos/seed-SEED[-KIND].jsonl")
    parser.add_argument("--until", metavar="HH:MM", help="begin no fault after this time of the day")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this fault alone and write nothing")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the sweep and the server are ended first
    if not has_compiler():
        print("a C compiler is needed (cc, or $CC)", file=sys.stderr)
        return 2
    name = "-".join(["seed", str(options.seed), *([options.kind] if options.kind else [])]) + ".jsonl"
    log = (options.log or Path("hflray_results/chaos") / name).resolve()
    log.parent.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(log.parent / f"{log.stem}.work", text=SWEEPS[options.kind or "plain"])
    if options.only is not None:
        (outcome,) = campaign.run([draw(options.seed, options.only)])
        print(outcome.line())
        return int(bool(outcome.lost))
    outcomes = _go_on(campaign, log, options)
    log.with_suffix(".md").write_text(report(outcomes), encoding="utf-8")
    print(log.with_suffix(".md"))
    return int(any(outcome.lost for outcome in outcomes))


def _go_on(campaign: Campaign, log: Path, options: argparse.Namespace) -> list[Outcome]:
    """Run the faults that the log lacks, up to the number of kills; return all outcomes."""
    outcomes = read_log(log)
    log.write_text("".join(f"{outcome.line()}\n" for outcome in outcomes), encoding="utf-8")  # without a cut line
    while sum(outcome.hit and outcome.fault.kills for outcome in outcomes) < options.kills:
        if options.until and time.strftime("%H:%M") >= options.until:
            break
        begin = len(outcomes)
        made = campaign.run([draw(options.seed, number) for number in range(begin, begin + CHAIN)])
        outcomes += made
        with log.open("a", encoding="utf-8") as file:
            file.write("".join(f"{outcome.line()}\n" for outcome in made))
        print("\n".join(map(_said, made)), flush=True)
    return outcomes


def _said(outcome: Outcome) -> str:
    fault = outcome.fault
    result = "; ".join(outcome.lost) or ("nothing lost" if outcome.hit else "the sweep had ended")
    exits = ", ".join(map(signal_name, outcome.exits))
    recovery = f", recovered in {outcome.recovery_s:.1f} s" if outcome.recovery_s is not None else ""
    notes = f" [{'; '.join(outcome.notes)}]" if outcome.notes else ""
    return f"{fault.number}: {fault.kind}, {fault.place} ({outcome.where}): {result}{recovery}; exits {exits}{notes}"


if __name__ == "__main__":
    sys.exit(main())
