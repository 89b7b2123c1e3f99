"""Which path volunteers serve: on a virtual clock, with the rule that they follow."""

import itertools
import random
import statistics

import pytest

from dipaco.swarm.planning.paths import (
    PathNeed,
    look_again_seconds,
    path_to_join,
    path_to_move_to,
)


def need(path, left, per_second):
    return PathNeed(path, (), 0, left, 0.0, 0, per_second)


def test_a_newcomer_goes_to_the_path_that_would_end_last():
    needs = [need(0, 100, 10.0), need(1, 100, 2.0), need(2, 10, 1.0), need(3, 0, 0.0)]
    assert path_to_join(needs, "ana") == 1
    assert path_to_join([*needs, need(4, 5, 0.0), need(5, 7, 0.0)], "ana") == 5, (
        "that nobody serves"
    )
    assert path_to_join([need(0, 0, 4.0), need(1, 0, 1.0)], "ana") == 1, "between two phases"
    assert path_to_join([], "ana") is None


def test_one_stays_where_a_move_brings_little_and_where_its_own_path_would_be_deserted():
    slow = need(1, 1000, 2.0)
    assert path_to_move_to([need(0, 1000, 9.0), slow], 0, 4.0, "ana") == 1
    assert path_to_move_to([need(0, 1000, 9.0), slow], 0, 8.0, "ana") is None, (
        "then 0 would end last"
    )
    assert path_to_move_to([need(0, 1000, 4.0), slow], 0, 4.0, "ana") is None, "alone"
    assert path_to_move_to([need(0, 30, 6.0), need(1, 30, 3.0)], 0, 3.0, "ana") is None, (
        "it costs more"
    )
    assert path_to_move_to([need(0, 0, 4.0), need(1, 1000, 0.0)], 0, 4.0, "ana") == 1, "0 has ended"
    assert path_to_move_to([need(0, 1000, 9.0), need(1, 1000, 0.0)], 0, 4.0, "ana") == 1
    assert path_to_move_to([slow], 1, 1.0, "ana") is None


def best_split(speeds, paths, samples):
    """Seconds of a phase with the best split that stays as it is."""
    return min(
        max(
            samples / sum(speed for speed, at in zip(speeds, split, strict=True) if at == path)
            for path in range(paths)
        )
        for split in itertools.product(range(paths), repeat=len(speeds))
        if len(set(split)) == paths
    )


class Evening:
    """Volunteers who serve the paths of a run; modules step when all paths have ended a phase."""

    LOOK, STALE, JOIN, MOVE = 20.0, 2.0, 3.0, 15.0  # seconds

    def __init__(self, speeds, paths, seed, samples=20_000.0):
        self.samples = samples  # of a phase
        self.speeds, self.paths, self.random = dict(enumerate(speeds)), paths, random.Random(seed)
        self.left = [self.samples] * paths
        self.at, self.busy_from, self.looks_at, self.seen = {}, {}, {}, {}
        self.now, self.idle, self.there = 0.0, 0.0, 0.0
        self.said_at, self.said = -1e9, []
        self.phases, self.began = [], 0.0
        self.moves = 0

    def needs(self):
        """As a backbone says them: some seconds old, and with those that have just joined."""
        if self.now - self.said_at >= self.STALE:
            self.said_at = self.now
            self.said = [
                need(path, self.left[path], sum(self.speeds[n] for n in self.joined(path)))
                for path in range(self.paths)
            ]
        return self.said

    def joined(self, path):
        here = [n for n, at in self.at.items() if at == path]
        return [n for n in here if self.busy_from[n] - self.MOVE + self.JOIN <= self.now]

    def serving(self, path):
        return [n for n, at in self.at.items() if at == path and self.busy_from[n] <= self.now]

    def come(self, number, path=None):
        if path is None:
            path = path_to_join(self.needs(), f"v{number}")
        else:
            self.moves += 1
        self.at[number] = path
        self.busy_from[number] = self.now + self.MOVE
        self.looks_at[number] = self.now + self.LOOK * self.random.uniform(0.5, 1.5)

    def tick(self, seconds=1.0):
        assert self.now < 40_000, "a path that nobody serves"
        for number in list(self.at):
            if self.now >= self.looks_at[number]:
                target = path_to_move_to(
                    self.needs(), self.at[number], self.speeds[number], f"v{number}"
                )
                if target is not None and target == self.seen.get(number):
                    self.come(number, target)
                    target = None
                self.seen[number] = target
                again = look_again_seconds(self.needs(), self.at[number])
                self.looks_at[number] = self.now + again * self.random.uniform(0.5, 1.5)
        for number, path in self.at.items():
            self.there += seconds * self.speeds[number]
            if self.left[path] <= 0 or self.busy_from[number] > self.now:
                self.idle += seconds * self.speeds[number]
        for path in range(self.paths):
            self.left[path] -= seconds * sum(self.speeds[n] for n in self.serving(path))
        self.now += seconds
        if max(self.left) <= 0:
            self.phases.append(self.now - self.began)
            self.left, self.began = [self.samples] * self.paths, self.now


@pytest.mark.parametrize("seed", range(3))
def test_six_volunteers_share_four_paths_of_which_one_is_deserted_half_way(seed):
    speeds = [10.0, 7.0, 5.0, 4.0, 3.0, 3.0]
    evening = Evening(speeds, 4, seed)
    for number in range(6):
        evening.come(number)
        for _ in range(10):
            evening.tick()
    while len(evening.phases) < 3:
        evening.tick()
    deserted = evening.at[0]
    for number in [n for n, path in evening.at.items() if path == deserted]:
        del evening.at[number]  # the fastest, and who is with it, go home
    left = [evening.speeds[number] for number in evening.at]
    while len(evening.phases) < 4:  # the phase in which they went
        evening.tick()
    first, best = evening.phases[1:3], best_split(speeds, 4, evening.samples)
    assert max(first) <= 1.2 * best, (first, best)
    while len(evening.phases) < 7:
        evening.tick()
    after = evening.phases[4:]
    if len(left) >= 4:
        best = best_split(left, 4, evening.samples)
        assert max(after) <= 1.2 * best, (after, best)
    assert evening.idle / evening.there < 0.1


@pytest.mark.parametrize("seed", range(3))
def test_six_that_come_at_once_do_not_go_from_path_to_path_together(seed):
    """Phases of a minute, in which a move costs a quarter."""
    speeds = [10.0, 7.0, 5.0, 4.0, 3.0, 3.0]
    evening = Evening(speeds, 4, seed, samples=480.0)
    for number in range(6):
        evening.come(number)
    while len(evening.phases) < 20:
        evening.tick()
    best = best_split(speeds, 4, evening.samples)
    assert statistics.median(evening.phases[2:]) <= 1.2 * best, (evening.phases, best)
    assert evening.moves < 60
