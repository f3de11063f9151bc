"""One run from data to run directory: features, class count, training, answers, evaluation, files.

The same command continues a run that was killed: finished parts (trunk cache, checkpoints) are found and used.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rowssl import distributed
from rowssl.checkpoint import Checkpoints
from rowssl.cluster import kmeans
from rowssl.config import RunConfig
from rowssl.continued import open_start
from rowssl.data.loader import FeatureAugmentation, Feed
from rowssl.data.profiles import frequency_groups
from rowssl.density import tail_discovery
from rowssl.epoch_log import EpochLog
from rowssl.errors import InputError
from rowssl.evaluate import Evaluation, evaluate
from rowssl.features import Features, open_features
from rowssl.methods import build_method, check_method
from rowssl.methods.base import Method
from rowssl.nn.convnet import ConvNet
from rowssl.problem import Problem, load_problem
from rowssl.progress import bar, err
from rowssl.results import Answers, ClassIds, answer, name_heads
from rowssl.train import Optimisation, train

SHOWN_SKIPPED = 10
SMALL_STEP = 16_384  # entries of a batch of features
GENTLE = 0.2  # of the usual learning rate, for weights that were trained before
PAPER_STEPS = 17_000  # 200 epochs of CIFAR-100-LT; larger data need fewer epochs for as many steps


@dataclass(frozen=True)
class Run:
    """A finished run, in memory."""

    config: RunConfig
    problem: Problem
    features: Features
    method: Method
    answers: Answers
    names: ClassIds
    evaluation: Evaluation | None
    metrics: dict[str, Any]
    curves: list[dict[str, Any]]
    seconds: float
    test_answers: Answers | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What was run, in words."""
        from rowssl.report.build import run_facts

        return run_facts(self)


def fit(config: RunConfig, out: Path | None = None, *, problem: Problem | None = None, report: bool = True) -> Run:
    """Train one method on one problem; with `out`, keep checkpoints there and write the run directory.

    `problem` takes the place of what `config.data` names, for data that are in memory already. Without `report` neither
    report.html nor model/ is written.
    """
    began = time.monotonic()
    check_method(config.method.name, config.method.options)
    distributed.start()
    device = torch.device(
        ("cuda" if torch.cuda.is_available() else "cpu") if config.train.device == "auto" else config.train.device
    )
    problem = problem or load_problem(config.data)
    tell_skipped(problem)
    start = open_start(config.start, out)
    problem = problem if start is None else start.problem(problem)
    reduction = None if start is None else start.reduction
    features = open_features(problem, config.encoder, seed=config.seed, reduction=reduction)
    say(
        f"{len(problem.table):,} rows, {int((problem.targets >= 0).sum()):,} labelled in {problem.n_old} known classes; "
        f"encoder {features.encoder.name} ({features.why})"
    )
    if start is not None and config.classes is None:
        classes, how = problem.n_old + len(start.others(problem)), f"those of {config.start}"
    else:
        classes, how = class_count(config, problem, features)
    say(f"{classes} classes ({how}); method {config.method.name}, seed {config.seed}")

    feed = build_feed(config, problem, features, device)
    options = dict(config.method.options)
    if uses_oracle(options):
        options["oracle_truth"] = torch.from_numpy(require_truth(problem, "a true_prior oracle"))
    method = build_method(
        config.method.name, features.encoder.tail, options,
        n_old=problem.n_old, n_classes=classes, n_rows=len(problem.table), seed=config.seed,
    ).to(device)  # fmt: skip
    if start is not None:
        start.warm(method, problem, features)
    beginning = [] if start is None else [start.digest]
    identity = config.identity(problem.table.fingerprint(), features.encoder.fingerprint, str(classes), *beginning)
    curves = run_training(method, feed, config, problem, out, identity) if method.trains else []
    with torch.no_grad():
        method.finish(feed)

    answers = answer(method, features.train, device)
    test = None if problem.truth is None or features.test is None else answer(method, features.test, device)
    evaluation = judge(problem, method, answers, test, classes)
    names = name_heads(problem, answers, classes) if start is None else start.name_heads(problem, answers, classes)
    seconds = time.monotonic() - began
    metrics = {
        **(evaluation.metrics if evaluation else {}),
        "classes": {"heads": classes, "how": how, "estimated": len(np.unique(answers.head))},
        "seconds": round(seconds, 2),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "seed": config.seed,
        "method": config.method.name,
        "identity": identity,
    }
    run = Run(config, problem, features, method, answers, names, evaluation, metrics, curves, seconds, test)
    if out is not None and distributed.rank() == 0:
        from rowssl.run_files import write_run

        write_run(run, out, report=report)
    return run


def say(text: str) -> None:
    """A line for the person watching, from one process only."""
    if distributed.rank() == 0:
        err.print(text, markup=False)


def tell_skipped(problem: Problem) -> None:
    """Which files were left out, and why; the report lists them all."""
    skipped = problem.table.skipped
    for one in skipped[:SHOWN_SKIPPED]:
        say(f"skipped {one.name}: {one.reason}")
    if len(skipped) > SHOWN_SKIPPED:
        say(f"and {len(skipped) - SHOWN_SKIPPED} more; the report lists them all")


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
    asked = config.classes or ("oracle" if config.data.name else "auto")
    if isinstance(asked, int):
        return asked, "as asked"
    if asked == "oracle":
        require_truth(problem, "--classes oracle")
        return problem.true_classes, "oracle: the benchmark's own number"
    from rowssl.count import estimate_classes

    estimate = estimate_classes(features.train, features.encoder.tail, problem.targets, problem.n_old, seed=config.seed)
    return estimate.best, f"estimated, between {estimate.low} and {estimate.high}"


def schedule(config: RunConfig, rows: int) -> tuple[int, int]:
    """Batch size and epochs for so many training rows."""
    batch_size = config.train.batch_size or min(128, max(16, 2 ** int(np.log2(max(1, rows // 16)))))
    usual = int(np.clip(round(PAPER_STEPS / max(1, rows // batch_size)), 20, 200))
    return batch_size, config.train.epochs or (usual if config.start is None else usual // 4)


def build_feed(config: RunConfig, problem: Problem, features: Features, device: torch.device) -> Feed:
    """The training set as the method will see it."""
    options = config.train
    batch_size, epochs = schedule(config, len(problem.table))
    pooled = len(features.train.shape) == 1
    usual = FeatureAugmentation(mix=1.0, noise=0.5) if pooled else FeatureAugmentation()
    asked = {name: getattr(options, name) for name in ("mix", "dropout", "noise")}
    augmentation = replace(usual, **{name: value for name, value in asked.items() if value is not None})
    if features.train.n_views == 0:  # embeddings alone: there is no view to mix with
        augmentation = replace(augmentation, mix=0.0)
    return Feed(
        features.train, problem.targets,
        batch_size=batch_size, epochs=epochs, seed=config.seed, augmentation=augmentation, device=device,
    )  # fmt: skip


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
) -> list[dict[str, Any]]:
    """The loop with a progress bar; one line of metrics.jsonl per epoch, kept in step with the checkpoints."""
    from_scratch = any(isinstance(part, ConvNet) for part in method.tail.modules())
    options = Optimisation(
        lr=config.train.lr or (0.01 if from_scratch else 0.1) * (1.0 if config.start is None else GENTLE),
        momentum=config.train.momentum,
        weight_decay=config.train.weight_decay,
        save_seconds=config.train.save_seconds,
    )
    checkpoints = None if out is None else Checkpoints(out / "checkpoints")
    log = EpochLog(out / "metrics.jsonl" if out is not None and distributed.rank() == 0 else None)
    shown = bar(f"training {config.method.name}, epoch", feed.epochs, enabled=distributed.rank() == 0)
    with threads_for(feed.batch_size * method.out_dim), shown as progress:
        for epoch in train(method, feed, options, checkpoints=checkpoints, identity=identity):
            log.recover(checkpoints)
            row: dict[str, Any] = epoch.row()
            if epoch.number % config.train.evaluate_every == 0 or epoch.number == epoch.of:
                row["phi"] = tail_measure(method, feed, problem)
            log.add(row)
            progress.advance(to=epoch.number, note=f"loss {sum(epoch.losses.values()):.3f}")
    log.close()
    log.recover(checkpoints)  # also when the checkpoint was the last one and there was nothing left to train
    for problem_text in checkpoints.problems if checkpoints else ():
        say(f"passed over a damaged checkpoint: {problem_text}")
    return log.rows()


@torch.no_grad()
def tail_measure(method: Method, feed: Feed, problem: Problem) -> dict[str, float] | None:
    """phi of appendix D.1 for head and tail, known and novel, when the truth is there to measure it."""
    if problem.truth is None or (problem.truth < 0).any():
        return None
    method.eval()
    scores = [method.tailedness(x) for _, x in feed.chunks()]
    if any(score is None for score in scores):
        return None
    score = torch.cat([s for s in scores if s is not None]).cpu()
    truth = torch.from_numpy(problem.truth)
    size = torch.bincount(truth, minlength=problem.true_classes)
    tail, novel = (size <= size.float().median())[truth], truth >= problem.n_old
    groups = {"head": ~tail, "tail": tail, "head_known": ~tail & ~novel, "tail_known": tail & ~novel,
              "head_novel": ~tail & novel, "tail_novel": tail & novel}  # fmt: skip
    return {name: round(tail_discovery(score, member), 4) for name, member in groups.items() if member.any()}


def judge(problem: Problem, method: Method, answers: Answers, test: Answers | None, classes: int) -> Evaluation | None:
    """Every number of the protocol, when there is a truth to judge by."""
    if problem.truth is None:
        return None
    rows = problem.unlabelled()
    recluster = None
    if test is not None and len(test.head) >= classes:
        recluster = kmeans(test.feature, classes, seed=method.seed).labels
    return evaluate(
        train_predicted=answers.head[rows],
        train_truth=problem.truth[rows],
        test_predicted=None if test is None else test.head,
        test_truth=problem.test_truth,
        recluster_predicted=None if recluster is None else np.asarray(recluster),
        n_old=problem.n_old,
        n_classes=problem.true_classes,
        n_clusters=classes,
        groups=frequency_bases(problem),
    )


def frequency_bases(problem: Problem) -> dict[str, np.ndarray]:
    """Many, Med and Few by each basis of counting, separately for known and novel classes."""
    groups = {}
    for basis, counts in problem.class_counts().items():
        if basis == "labelled":  # novel classes have no labels to count
            continue
        parts = [frequency_groups(part) for part in (counts[: problem.n_old], counts[problem.n_old :]) if len(part)]
        groups[basis] = np.concatenate(parts)
    return groups
