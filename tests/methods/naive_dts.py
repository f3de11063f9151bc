"""One training step of DTS once more: plain loops over samples, prototypes and classes in double precision.

`official=False` restates the paper's equations, `official=True` its public code; no option of the package is read.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from methods import naive

K, TAU_MIN, TAU_MAX, LAMBDA_REP, EPSILON, TAU_S = 15, 0.05, 1.0, 0.35, 4.0, 0.1


class NaiveDTS:
    """Key network, queue, prototypes, lists S^c and u as plain Python objects."""

    def __init__(self, weights: dict[str, np.ndarray], prototypes: np.ndarray, queue: list, size: int, official: bool):
        self.official = official
        self.key = naive.Network(weights)
        self.prototypes = list(prototypes.astype(np.float64))
        self.queue: deque = deque(queue, maxlen=size)  # (key, label, row)
        self.classes = len(weights["classifier.weight"])
        self.u = np.zeros(self.classes)
        self.lists: list[list[float]] = [[] for _ in range(self.classes)]

    def loss(
        self, weights: dict[str, np.ndarray], views: list[np.ndarray], target: list[int], epoch: int
    ) -> dict[str, float]:
        """The three terms; what was found on the way stays in `self`."""
        query, rows = naive.Network(weights), range(len(target))
        z = [[query.feature(x) for x in view] for view in views]
        o = [[query.logits(row) for row in view] for view in z]
        h = [query.embed(row) for row in z[0]]
        self.b = [self.key.embed(self.key.feature(x)) for x in views[1]]
        stored = [key for key, _, _ in self.queue]

        # Tailedness, on the queue and the prototypes as they were before this step.
        if stored:
            d = [naive.density(m, stored, K, self.official) for m in self.prototypes]
        else:
            d = [0.0] * len(self.prototypes)
        self.s = [d[naive.nearest(key, self.prototypes)] for key in self.b]
        spread = max(d) - min(d)
        ratio = [(s - min(d)) / spread if spread else 0.5 for s in self.s]
        self.tau = [TAU_MIN + r * (TAU_MAX - TAU_MIN) for r in ratio]

        # Representation.
        self.l_u, l_sup = [], []
        for i in rows:
            positive, cosine = naive.dot(h[i], self.b[i]), [naive.dot(h[i], key) for key in stored]
            self.l_u.append(naive.info_nce(positive, cosine, self.tau[i]))
            positives, negatives = [positive], []
            for c, (_, label, _) in zip(cosine, self.queue, strict=True):
                (positives if target[i] >= 0 and label == target[i] else negatives).append(c)
            if self.official or target[i] >= 0:
                l_sup.append(naive.unified(positives, negatives))

        # Classification.
        teacher: list[list[np.ndarray]] = [[], []]
        for v in (0, 1):
            for i in rows:
                logits = o[v][i].copy()
                if self.official:
                    logits[np.argmax(o[v][i])] += self.u[np.argmax(o[v][i])]
                else:
                    logits += self.u
                q = naive.softmax(logits, naive.teacher_temperature(epoch))
                teacher[v].append(np.eye(self.classes)[target[i]] if target[i] >= 0 else q)
        guess = [int(np.argmax(o[0][i] if self.official else teacher[0][i])) for i in rows]
        self.assigned = [target[i] if target[i] >= 0 else guess[i] for i in rows]
        student = [[logits / TAU_S for logits in view] for view in o]
        probability = [naive.softmax(logits) for view in student for logits in view]
        self.l_sup = sum(l_sup) / len(l_sup) if l_sup else 0.0
        return {
            "representation": (1 - LAMBDA_REP) * sum(self.l_u) / len(rows) + LAMBDA_REP * self.l_sup,
            "classification": naive.crossed((teacher[0], teacher[1]), (student[0], student[1])),
            "entropy": EPSILON * naive.entropy_gap(probability),
        }

    def after(
        self, weights: dict[str, np.ndarray], target: list[int], index: list[int], last_of_epoch: bool, momentum: float
    ) -> None:
        """Key network, queue, prototypes, lists, and u at the end of an epoch."""
        for name in self.key.w:
            if not name.startswith("classifier"):
                self.key.w[name] = momentum * self.key.w[name] + (1 - momentum) * weights[name]
        scored = len(self.queue) > 0  # against an empty queue there is no density
        self.queue.extend(zip(self.b, target, index, strict=True))
        keys = self.b if self.official else [key for key, _, _ in self.queue]
        self.prototypes = naive.moved(self.prototypes, keys, 0.9)

        for score, label in zip(self.s, self.assigned, strict=True):
            if scored:
                self.lists[label].append(score)
        if not last_of_epoch:
            return
        for c, scores in enumerate(self.lists):
            mean = sum(scores) / max(1, len(scores))
            variance = sum((s - mean) ** 2 for s in scores) / max(1, len(scores))
            std = float(np.float32(math.sqrt(variance)))  # stored in single precision
            if len(set(scores)) < 2:  # a standard deviation of 0: nothing, one score, or one score many times
                self.u[c] = self.u[c] if self.official else 0.0
            else:
                self.u[c] = 0.9 * self.u[c] + 0.1 * std if self.official else std
        self.lists = [[] for _ in range(self.classes)]
