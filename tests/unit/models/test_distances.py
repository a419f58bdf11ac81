"""Buckets of distances, and what attention adds to scores for each."""

import numpy as np

from close import assert_close
from sporelm.models.distances import BUCKETS, bucket_of, spread_biases


def test_buckets_are_those_of_the_paper() -> None:
    near = np.array([0, -1, -7, -8, -15, -16, -31, -32, -64, -90, -91, -127, -128, -9000])
    assert bucket_of(near).tolist() == [0, 1, 7, 8, 9, 10, 11, 12, 14, 14, 15, 15, 15, 15]
    assert (bucket_of(-near[1:]) == bucket_of(near[1:]) + BUCKETS // 2).all()


def test_each_head_has_a_number_for_each_distance() -> None:
    learned = np.random.RandomState(1).randn(BUCKETS, 3).astype(np.float32)
    for context, far in ((1, 64), (64, 64), (65, 128), (512, 512)):
        spread = spread_biases(learned, context)
        assert spread.shape == (3, 2 * far)
        assert_close(spread[:, far], learned[0], "exact")
        assert_close(spread[:, far - 1], learned[1], "exact")
        assert_close(spread[:, far + 20], learned[bucket_of(np.array([20]))[0]], "exact")
