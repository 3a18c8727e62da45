"""scikit-learn's own checks of an estimator, on vectors."""

import os
import subprocess
import sys
import warnings
from typing import Any

import pytest
from sklearn.utils.estimator_checks import check_estimator

from manigraph import ManifoldGraphClassifier, SemiSupervisedClassifier

UPDATES = 10
"""Enough to learn scikit-learn's blobs, which is what the checks ask for."""

MINUS_ONE = {
    "check_classifiers_classes": "its last part takes -1 and 1 for classes, while -1 means unlabelled here "
    "as in sklearn.semi_supervised, whose estimators the check excuses by their names; it passes with "
    "unlabelled=None"
}


QUICK: dict[str, Any] = {"max_iter": UPDATES, "unlabelled_batch": 32}


def results(estimator: Any, expected: dict[str, str]) -> dict[str, str]:
    """Outcome of every check that did not pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks feed data that is to be warned of
        outcomes = check_estimator(estimator, expected_failed_checks=expected, on_fail=None, on_skip=None)
    assert len(outcomes) > 50
    return {o["check_name"]: f"{o['status']}: {o['exception']}" for o in outcomes if o["status"] != "passed"}


ARRAY_API = "check_array_api_input"


def test_all_checks_pass_when_minus_one_is_a_class() -> None:
    found = results(SemiSupervisedClassifier("pi_model", unlabelled=None, **QUICK), {})
    assert set(found) == {ARRAY_API}, found
    # It asks for SCIPY_ARRAY_API before SciPy is imported: see below.
    assert found[ARRAY_API].startswith("skipped: SCIPY_ARRAY_API is not set")


def test_all_checks_pass_but_the_one_that_calls_minus_one_a_class() -> None:
    found = results(ManifoldGraphClassifier(**QUICK), MINUS_ONE)
    assert set(found) == {ARRAY_API, *MINUS_ONE}, found
    assert found["check_classifiers_classes"].startswith("xfail: y holds only one class")


def test_the_check_that_needs_a_setting_of_scipy() -> None:
    script = (
        "from sklearn.utils.estimator_checks import check_array_api_input as check\n"
        "from manigraph import ManifoldGraphClassifier as Kind\n"
        "check('Kind', Kind(max_iter=2), array_namespace='numpy', expect_only_array_outputs=False)"
    )
    environment = {**os.environ, "SCIPY_ARRAY_API": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("algorithm", ["supervised", "fixmatch", "fast_swa", "temporal_ensembling"])
def test_other_methods_are_fitted_again_to_the_same_and_pickled(algorithm: str) -> None:
    from sklearn.utils import estimator_checks as checks

    estimator = SemiSupervisedClassifier(algorithm, **QUICK)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checks.check_fit_idempotent(algorithm, estimator)
        checks.check_estimators_pickle(algorithm, estimator)
