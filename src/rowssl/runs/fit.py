"""One run from data to run directory: features, class count, training, answers, evaluation, files.

The same command continues a run that was killed: finished parts (trunk cache, checkpoints) are found and used.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rowssl import __version__, methods
from rowssl.clustering.kmeans import kmeans
from rowssl.config import RunConfig
from rowssl.core import distributed
from rowssl.core.console import bar, err
from rowssl.core.errors import InputError
from rowssl.core.memory import peak_memory, reused_blocks
from rowssl.data.feed import BehindStage, FeatureAugmentation, Feed, makes_views
from rowssl.data.problem import Problem, load_problem
from rowssl.encoders.tails import is_from_scratch
from rowssl.methods import build_method, check_method
from rowssl.methods.base import Method
from rowssl.methods.density import tail_discovery
from rowssl.methods.held_out import Kept, held_back
from rowssl.methods.transfer import Transfer
from rowssl.runs.answers import Answers, answer, name_heads, with_issues
from rowssl.runs.collapse import collapse, without_pictures
from rowssl.runs.edits import Edits
from rowssl.runs.folder import alone
from rowssl.runs.run import Page, Run, absolute, judge
from rowssl.runs.warm_start import open_start
from rowssl.training.checkpoints import Checkpoints, refuse_another, run_identity
from rowssl.training.features import Features, open_features
from rowssl.training.log import EpochLog
from rowssl.training.loop import Optimisation, train
from rowssl.training.plan import learning_rate, schedule

SHOWN_SKIPPED = 10
SMALL_STEP = 16_384  # entries of a batch of features


def fit(
    config: RunConfig,
    out: Path | None = None,
    *,
    problem: Problem | None = None,
    whole: bool = True,
    page: Page | None = None,
) -> Run:
    """Train one method on one problem; with `out`, keep checkpoints there and write the run directory.

    Parameters
    ----------
    problem
        Takes the place of what `config.data` names, for data that are in memory already.
    whole
        Whether the directory is to be used: without, it holds tables and numbers alone, neither model/ nor report.html.
    page
        What writes report.html.
    """
    check_method(config.method.name, config.method.options)
    if config.train.time_limit is not None and config.method.name not in ("auto", "transfer"):
        raise InputError(f"--time-limit goes with --method auto or transfer, not with {config.method.name}.")
    distributed.start()
    with alone(out):
        return _fit(config, out, problem, whole, page)


def _fit(config: RunConfig, out: Path | None, problem: Problem | None, whole: bool, page: Page | None) -> Run:
    began = time.monotonic()
    device = distributed.device(config.train.device)
    problem = problem or load_problem(config.data)
    tell_skipped(problem)
    start = open_start(config.start, out)
    problem = problem if start is None else start.problem(problem)
    check_classes(config, problem)
    reduction = None if start is None else start.reduction
    features = open_features(problem, config, device=device, reduction=reduction)
    problem.table.require_unchanged()
    known = f"{problem.n_old} known class{'' if problem.n_old == 1 else 'es'}"
    say(f"{len(problem.table):,} rows, {int((problem.targets >= 0).sum()):,} labelled in {known}")
    say(f"encoder {features.choice}")
    if start is not None and config.classes is None:
        classes, how = problem.n_old + len(start.others(problem)), f"those of {config.start}"
    else:
        classes, how = class_count(config, problem, features)
    say(f"{classes} classes ({how}); method {config.method.name}, seed {config.seed}")

    share = config.train.held if methods.METHODS[config.method.name].trains else 0.0
    held = held_back(problem.targets, share, config.seed)
    feed = build_feed(config, problem, features, device, held)
    options = dict(config.method.options)
    if uses_oracle(options):
        options["oracle_truth"] = torch.from_numpy(require_truth(problem, "a true_prior oracle"))
    method = build_method(
        config.method.name, features.encoder.tail, options,
        n_old=problem.n_old, n_classes=classes, n_rows=len(problem.table), seed=config.seed,
    ).to(device)  # fmt: skip
    if isinstance(method, Transfer) and config.train.time_limit is not None:
        method.ends = began + config.train.time_limit
    if start is not None:
        start.warm(method, problem, features)
    if len(held):
        method.kept = Kept(method, held, problem.targets[held]).to(device)
    beginning = [] if start is None else [start.digest]
    facts = [problem.table.fingerprint(), features.encoder.fingerprint, str(classes), *beginning]
    identity = run_identity(config, feed, features.views, *facts)
    refuse_another(out, identity)
    curves, scores = run_training(method, feed, config, problem, out, identity) if method.trains else ([], None)

    def as_it_is() -> Run:
        """The run with the model that the method now is."""
        with method.unchanged():
            answers = answer(method, features.train, device, tailedness=scores)
            test = None if problem.truth is None or features.test is None else answer(method, features.test, device)
        own = answers.head  # of labelled rows, too
        answers = with_issues(answers, problem.targets, n_old=problem.n_old, n_classes=classes)
        names = name_heads(problem, answers, classes) if start is None else start.name_heads(problem, answers, classes)
        edits = Edits(names.ids, names.n_old, identity, width=method.out_dim)
        evaluation = judge(problem, answers, test, edits, recluster(problem, method, test, classes))
        seconds = time.monotonic() - began
        metrics = {
            **(evaluation.metrics if evaluation else {}),
            **method.facts(),
            "problem": collapse(own, problem.targets, names.ids, problem.n_old),
            "without_pictures": [
                names.ids[one] for one in without_pictures(answers.head, problem.targets, problem.n_old)
            ],
            "classes": {"heads": classes, "how": how, "estimated": len(np.unique(answers.head))},
            "seconds": round(seconds, 2),
            "peak_memory_mb": round(peak_memory() / 2**20, 1),
            "seed": config.seed,
            "method": config.method.name,
            "cached_views": features.views,
            "identity": identity,
        }
        facts = run_facts(config, problem, features, metrics, seconds)
        run = Run(
            config, problem, answers, edits, evaluation, metrics, curves, seconds, facts, absolute(config.data),
            test_answers=test, features=features, method=method, page=page,
        )  # fmt: skip
        for one, name in zip(names.ids, names.shown, strict=True):  # names that a run before this one had
            edits = edits if one == name else edits.rename(one, name)
        return run.with_edits(edits) if edits.history else run

    if method.kept is not None:
        method.kept.put_back(method)
    run = None
    with torch.no_grad():
        for following in method.answers(feed):
            run = as_it_is()
            if out is not None and distributed.rank() == 0:
                run = run.save(out, whole=whole)
            if following:
                say(f"first answer after {run.seconds:.0f} s{f', in {out}' if out else ''}; {following}")
    assert run is not None
    if start is not None and (said := worse_than_before(start.run.metrics, run.metrics)):
        say(f"{said}: {config.start} is as it was, and may be the better of the two")
    return run


def worse_than_before(before: dict[str, Any], now: dict[str, Any]) -> str:
    """A sentence where an answer with corrections is expected to be right less often than the one they were made in."""
    earlier, later = before.get("expected"), now.get("expected")
    if not isinstance(earlier, dict) or not isinstance(later, dict):
        return ""
    was, low, now_right = earlier.get("expected"), earlier.get("low"), later["expected"]
    if not isinstance(was, int | float) or not isinstance(low, int | float) or now_right >= low:
        return ""
    return f"expected to be right: {now_right:.0f} % with the corrections, {was:.0f} % before"


def say(text: str) -> None:
    """A line for the person watching, from one process only."""
    if distributed.rank() == 0:
        err.print(text, markup=False, soft_wrap=True)


def tell_skipped(problem: Problem) -> None:
    """Which files were left out, and why; the report lists them all."""
    skipped = problem.table.skipped
    for one in skipped[:SHOWN_SKIPPED]:
        say(f"skipped {one.name}: {one.reason}")
    if len(skipped) > SHOWN_SKIPPED:
        say(f"and {len(skipped) - SHOWN_SKIPPED} more; the report lists them all")


def check_classes(config: RunConfig, problem: Problem) -> None:
    """What cannot be, said before anything is computed."""
    asked, known, rows = config.classes, problem.n_old, len(problem.table)
    if not isinstance(asked, int):
        if known == 1 and (problem.targets >= 0).all():
            raise InputError(f"Every row has the label {problem.class_names[0]!r}: there is nothing to discover.")
    elif asked < max(2, known):
        why = f"{known} classes have labels" if known > 1 else "at least 2 are needed"
        raise InputError(f"--classes {asked} is too few: {why}.")
    elif asked > rows:
        raise InputError(f"--classes {asked} is too many: there are only {rows:,} rows.")


def require_truth(problem: Problem, what: str) -> np.ndarray:
    """The true classes of the training rows, for what says oracle in its name."""
    if problem.truth is None or (problem.truth < 0).any():
        raise InputError(f"{what} needs the true class of every training row, and the data do not hold it.")
    return problem.truth


def uses_oracle(options: dict[str, Any]) -> bool:
    """Whether a method option asks for the true classes."""
    return any(value in ("true_prior", "oracle") for value in options.values() if isinstance(value, str))


def class_count(config: RunConfig, problem: Problem, features: Features) -> tuple[int, str]:
    """How many heads, and where the number comes from."""
    asked = ("oracle" if config.data.name else "auto") if config.classes is None else config.classes
    if isinstance(asked, int):
        return asked, "as asked"
    if asked == "oracle":
        require_truth(problem, "--classes oracle")
        return problem.true_classes, "oracle: the benchmark's own number"
    from rowssl.counting.base import estimate_classes

    train, tail = features.train, features.encoder.tail
    if features.remembered is not None:
        train, tail = BehindStage(features.remembered, tail), nn.Identity()
    estimate = estimate_classes(train, tail, problem.targets, problem.n_old, seed=config.seed)
    doubt = ", unstable" if estimate.unstable else ""
    return estimate.best, f"estimated, between {estimate.low} and {estimate.high}{doubt}"


def build_feed(
    config: RunConfig, problem: Problem, features: Features, device: torch.device, held: np.ndarray | None = None
) -> Feed:
    """The training set as the method will see it, without the labels that are held back."""
    targets = problem.targets.copy()
    if held is not None:
        targets[held] = -1
    options = config.train
    batch_size, epochs = schedule(config, len(problem.table), from_scratch=is_from_scratch(features.encoder.tail))
    pooled = len(features.train.shape) == 1
    usual = FeatureAugmentation(mix=1.0, noise=0.5) if pooled else FeatureAugmentation()
    asked = {name: getattr(options, name) for name in ("mix", "dropout", "noise")}
    augmentation = replace(usual, **{name: value for name, value in asked.items() if value is not None})
    if features.train.n_views == 0:  # embeddings alone: there is no view to mix with
        augmentation = replace(augmentation, mix=0.0)
    if makes_views(features.train) and options.mix is None:  # mixing stands for more views than are cached
        augmentation = replace(augmentation, mix=0.0)
    return Feed(
        features.train, targets,
        batch_size=batch_size, epochs=epochs, seed=config.seed, augmentation=augmentation, device=device,
        tuning=features.tuning, tuning_seconds=features.tuning_seconds,
        remembered=features.remembered,
    )  # fmt: skip


def recluster(problem: Problem, method: Method, test: Answers | None, classes: int) -> np.ndarray | None:
    """Clusters of the test rows by themselves, for the number that is optimistic; None without a truth to judge them by."""
    if problem.truth is None or test is None or len(test.head) < classes:
        return None
    shown = distributed.rank() == 0
    return np.asarray(kmeans(test.feature, classes, seed=method.seed, to_the_end=True, progress=shown).labels)


@torch.no_grad()
def tail_measure(method: Method, feed: Feed, problem: Problem) -> tuple[dict[str, float] | None, Tensor | None]:
    """phi of appendix D.1 for head and tail, known and novel, when the truth is there to measure it.

    Also the scores (N,) that it is measured by, for whoever needs them before anything changes.
    """
    if problem.truth is None or (problem.truth < 0).any():
        return None, None
    method.eval()
    scores = method.training_tailedness(feed)
    if scores is None:
        return None, None
    score = scores.cpu()
    truth = torch.from_numpy(problem.truth)
    size = torch.bincount(truth, minlength=problem.true_classes)
    tail, novel = (size <= size.float().median())[truth], truth >= problem.n_old
    groups = {"head": ~tail, "tail": tail, "head_known": ~tail & ~novel, "tail_known": tail & ~novel,
              "head_novel": ~tail & novel, "tail_novel": tail & novel}  # fmt: skip
    return {name: round(tail_discovery(score, member), 4) for name, member in groups.items() if member.any()}, scores


def run_facts(
    config: RunConfig, problem: Problem, features: Features, metrics: dict[str, Any], seconds: float
) -> dict[str, str]:
    """What was run: method, encoder, data, versions."""
    facts = {
        "method": config.method.name + "".join(f", {k}={v}" for k, v in config.method.options.items()),
        "encoder": features.choice,
        "classes": f"{metrics['classes']['heads']}, {metrics['classes']['how']}",
        "seed": str(config.seed),
        "rows": f"{len(problem.table):,}, of which {int((problem.targets >= 0).sum()):,} labelled",
        "data": problem.table.source or str(config.data.name),
        "data fingerprint": problem.table.fingerprint()[:16],
        "map": "PCA",  # until the rows are laid out
        "seconds": f"{seconds:.1f}",
        "versions": f"rowssl {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    if problem.recipe:
        facts["split"] = ", ".join(f"{key} {value}" for key, value in problem.recipe.items() if value not in (None, ""))
    return {key: value for key, value in facts.items() if value}


@contextmanager
def threads_for(size: int) -> Iterator[None]:
    """One thread for small steps: two would spend their time waiting for each other, above all on a busy machine."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1 if size < SMALL_STEP else usual)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def run_training(
    method: Method, feed: Feed, config: RunConfig, problem: Problem, out: Path | None, identity: str
) -> tuple[list[dict[str, Any]], Tensor | None]:
    """The loop with a progress bar; one line of metrics.jsonl per epoch, kept in step with the checkpoints.

    Returns these lines, and the tailedness of the rows at the end (N,) if it had to be known.
    """
    options = Optimisation(
        lr=learning_rate(config, from_scratch=is_from_scratch(method.tail)),
        momentum=config.train.momentum,
        weight_decay=config.train.weight_decay,
        save_seconds=config.train.save_seconds,
        save_within_seconds=config.train.save_within_seconds,
    )
    checkpoints = None if out is None else Checkpoints(out / "checkpoints")
    log = EpochLog(out / "metrics.jsonl" if out is not None and distributed.rank() == 0 else None)
    shown = bar(f"training {config.method.name}, epoch", feed.epochs, enabled=distributed.rank() == 0)
    heavy = makes_views(feed.source)  # where the trunk runs in every step it has all cores
    conditions = nullcontext() if heavy else threads_for(feed.batch_size * method.out_dim)
    told: list[str] = []
    scores: Tensor | None = None

    def watch(steps: int) -> None:
        log.recover(checkpoints)  # at once: another kill may come before the epoch ends
        for text in checkpoints.problems[len(told) :] if checkpoints else ():
            told.append(text)
            say(f"passed over a damaged checkpoint: {text}")
        progress.move(steps / feed.steps_per_epoch)

    with reused_blocks(), conditions, shown as progress:
        kept: dict[str, Any] = {"checkpoints": checkpoints, "identity": identity}
        for epoch in train(method, feed, options, **kept, watch=watch):
            row: dict[str, Any] = epoch.row()
            if epoch.number % config.train.evaluate_every == 0 or epoch.number == epoch.of:
                row["phi"], scores = tail_measure(method, feed, problem)
            log.add(row)
            progress.advance(to=epoch.number, note=f"loss {sum(epoch.losses.values()):.3f}")
    log.close()
    return log.rows(), None if method.remembers_rows else scores
