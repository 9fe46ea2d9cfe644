"""Every way of failing that we promise to survive, what happens then, and the test that holds it.

The table is also in docs/privacy.md; the tests below keep both true.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATE = "tests/privacy/test_failure_cases_gate.py::test_"
NOISE = "tests/privacy/test_failure_cases_noise.py::test_"
RUNS = "tests/privacy/test_failure_cases_runs.py::test_"
FINAL = "tests/simulation/client_vectors/test_final_models_runs.py::test_"
PARTS = "tests/runs/test_folder_parts.py::test_"
TEAM = "tests/simulation/test_team.py::test_"
IDENTITY = "tests/simulation/test_code_digest.py::test_"
KEY = "tests/simulation/test_noise_key.py::test_"
LEDGER = "tests/privacy/ledger/test_ledger.py::test_"
EXTREMES = "tests/privacy/accounting/test_accounting_extremes.py::test_"
PRODUCTION = "tests/runs/test_training_production.py::test_"
INTERFERENCE = "tests/privacy/test_non_interference.py::test_"
LENIENT = "tests/data/readers/test_readers_lenient.py::test_"
DAMAGE = "tests/privacy/ledger/test_ledger_damage.py::test_"
ADAPTIVE = "tests/privacy/accounting/test_adaptive.py::test_"
POPULATIONS = "tests/privacy/ledger/test_populations.py::test_"
MISSING_CHARGES = "tests/runs/test_missing_charges.py::test_"

KILLED = (
    RUNS + "kill_9_after_charge_before_release_after_release_before_checkpoint_or_mid_checkpoint"
)
NOT_FINITE = GATE + "an_update_that_is_nan_or_infinite_counts_as_zero_and_the_divisor_is_unchanged"
VARIANCE = (
    NOISE + "the_variance_of_the_noise_is_the_plans_within_one_percent",
    NOISE + "noise_added_in_half_precision_twice_per_shard_or_to_the_sum_is_caught_by_the_variance",
    NOISE + "half_precision_weights_are_rounded_once_after_wide_noise",
)

#: The case, what happens, and where that is tested. Tests of the gate are of both gates.
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "NaN update": ("counts as zero, the divisor is unchanged", (NOT_FINITE,)),
    "infinite update": ("the same", (NOT_FINITE,)),
    "finite entries whose float32 norm overflows": (
        "clipped to γ like any other",
        (GATE + "finite_entries_whose_float32_norm_overflows_are_clipped",),
    ),
    "zero update": ("adds nothing", (GATE + "a_zero_update_adds_nothing",)),
    "clipped norm one ulp above γ": (
        "does not occur, in exact arithmetic",
        (GATE + "no_clipped_norm_is_one_ulp_above_gamma",),
    ),
    "wrong shape, dtype or key": (
        "counts as zero; no error, warning or word names the client",
        (
            GATE
            + "a_wrong_shape_dtype_or_key_counts_as_zero_with_no_public_error_naming_the_client",
            GATE + "an_upload_in_any_kind_of_floating_point_numbers_counts",
        ),
    ),
    "an index outside of a client's table": (
        "that client's upload counts as zero; no other client's weights are read or moved",
        (
            "tests/models/test_lookup.py::test_an_index_outside_of_its_table_touches_nobody_else",
            "tests/models/test_lookup.py::"
            "test_a_bad_index_in_training_moves_no_other_clients_model",
        ),
    ),
    "per-layer clipping charged as a whole": (
        "there is no other: one vector, one γ, one charge",
        (GATE + "per_layer_clipping_is_charged_as_a_whole",),
    ),
    "client lies about its sample count": (
        "ignored: all clients weigh the same",
        (GATE + "a_client_that_lies_about_its_sample_count_is_ignored",),
    ),
    "dropout": ("the divisor stays q", (GATE + "dropout_leaves_the_divisor_at_q",)),
    "Poisson draws no client": (
        "pure noise, charged",
        (GATE + "poisson_that_draws_nobody_publishes_pure_noise_and_is_charged",),
    ),
    "duplicate client in one round": (
        "one contribution, the first",
        (GATE + "a_duplicate_client_in_one_round_is_one_contribution",),
    ),
    "late upload of an earlier round": (
        "dropped",
        (GATE + "a_late_upload_of_an_earlier_round_is_dropped",),
    ),
    "kill −9 after charge, before release": (
        "stays charged; the lost round counts against the plan",
        (KILLED, "tests/runs/test_training_resume.py::test_kill_9_at_any_moment_loses_nothing"),
    ),
    "kill −9 after release, before checkpoint": ("the same", (KILLED,)),
    "kill −9 in mid-checkpoint": ("the checkpoint before it counts", (KILLED,)),
    "checkpoint rolled back behind the ledger": (
        "refused",
        (
            "tests/runs/test_training_production.py::test_a_checkpoint_that_was_rolled_back_is_refused",
        ),
    ),
    "noise stream reused across rounds, workers or forks": (
        "refused",
        (NOISE + "a_noise_stream_reused_across_rounds_workers_or_forks_is_refused",),
    ),
    "two servers on one ledger": (
        "the second refuses",
        (
            "tests/runs/test_training_production.py::test_two_servers_cannot_share_a_ledger",
            LEDGER + "a_second_writer_is_refused_and_readers_are_not",
        ),
    ),
    "ledger unwritable or disk full": (
        "refused before noise; the run can go on later",
        (
            RUNS + "a_ledger_unwritable_or_a_disk_full_refuses_before_noise",
            LEDGER + "a_write_protected_ledger_is_refused_before_anything_is_charged",
        ),
    ),
    "ledger edited, missing or rolled back": (
        "refused before noise",
        (
            RUNS + "a_ledger_edited_missing_or_rolled_back_is_refused_before_noise",
            DAMAGE + "edits_are_found_and_named",
        ),
    ),
    "next round would pass the cap": (
        "stops before sampling and keeps the last model",
        (RUNS + "a_round_that_would_pass_the_cap_stops_before_sampling_and_keeps_the_last_model",),
    ),
    "σ = 0 or γ = ∞": (
        "ε = ∞ and NOT PRIVATE, in every command and statement",
        (RUNS + "sigma_zero_or_gamma_infinite_is_said_plainly_and_never_epsilon_zero",),
    ),
    "negative or NaN settings": (
        "an error of configuration",
        (RUNS + "negative_or_nan_settings_are_an_error_of_configuration",),
    ),
    "noise in half precision, twice, per shard or on the sum": (
        "the variance, within 1%, is the plan's, and such mutants are caught by it",
        VARIANCE,
    ),
    "normalisation buffers outside the clipped vector": (
        "never shared: a model that has them is refused",
        (
            "tests/models/test_flat.py::test_running_statistics_are_refused_with_what_to_use_instead",
            "tests/models/test_flat.py::test_a_home_made_running_buffer_is_refused_wherever_it_begins",
        ),
    ),
    "early stopping on private validation": (
        "charged for the whole plan, or refused",
        (RUNS + "early_stopping_on_private_validation_is_charged_or_refused",),
    ),
    "first-time client": (
        "inherits nothing from another",
        (
            "tests/privacy/test_release.py::"
            "test_a_client_sampled_for_the_first_time_inherits_nothing_from_another",
        ),
    ),
    "sampler and accountant disagree": (
        "cannot be constructed",
        (NOISE + "a_sampler_and_an_accountant_that_disagree_cannot_be_constructed",),
    ),
    "m changes in mid-run": (
        "refused",
        ("tests/runs/test_training_resume.py::test_other_data_is_refused",),
    ),
    "exceptions that only occur with one client's data": (
        "same public behaviour: files, words, charges; it counts as zero",
        (
            RUNS + "exceptions_that_only_occur_with_one_clients_data_show_nowhere",
            RUNS
            + "exceptions_that_only_occur_with_one_clients_data_have_the_same_public_behaviour",
            RUNS + "what_fails_for_everybody_fails_before_anything_is_spent",
        ),
    ),
    "unsalted digests of private data in readable files": (
        "there are none: such digests are keyed with a secret of the run's owner, in files and in "
        "the ledger",
        (
            PARTS + "colluders_who_know_all_but_six_labels_find_nothing_to_try_them_on",
            PARTS + "digests_in_the_ledger_and_in_private_files_are_keyed",
        ),
    ),
    "private files that others can read": (
        "never, not even for a moment and whatever the umask is; a part that was opened to others "
        "is refused",
        (
            PARTS + "what_is_private_is_the_owners_alone_whatever_the_umask",
            PARTS + "no_private_file_is_readable_by_others_even_for_a_moment",
            PARTS + "a_private_part_that_others_can_open_is_refused",
        ),
    ),
    "private values among the files that may be handed out": (
        "`public/` holds what was published and public settings, and nothing else",
        (
            PARTS + "the_public_part_holds_what_the_statement_lists_and_nothing_else",
            PARTS + "plan_and_shared_model_say_nothing_that_depends_on_rows",
            PARTS + "how_many_clients_were_ever_sampled_shows_in_no_public_file",
        ),
    ),
    "processes of one team with different data": (
        "refused by every process before anything is trained, charged or written; so are other "
        "settings, models, algorithms and code",
        (
            TEAM + "every_process_refuses_a_team_that_differs_and_says_in_what",
            TEAM + "nothing_was_trained_charged_or_written",
        ),
    ),
    "two runs whose noise has the same key": (
        "only if they publish the same numbers: the key covers data, start, model, code, "
        "algorithm, plans, bounds and schedule, and with dropout engine, device and processes",
        (
            IDENTITY + "two_metrics_plans_do_not_give_the_exact_accuracies",
            IDENTITY + "two_factories_of_one_name_do_not_give_the_exact_sum",
            IDENTITY + "everything_that_decides_a_release_decides_both_kinds_of_noise",
            KEY + "two_engines_whose_dropout_differs_do_not_give_the_difference_of_their_sums",
            KEY + "rows_that_were_changed_in_place_have_other_noise",
        ),
    ),
    "an experiment replayed with other code": (
        "refused: it would publish other bits for rounds that are charged once",
        (IDENTITY + "a_run_whose_code_has_changed_does_not_go_on",),
    ),
    "checkpoint ahead of its ledger, which was rolled back with its head": (
        "refused; `pmtl ledger charge` charges what is missing",
        (
            MISSING_CHARGES + "a_ledger_that_was_rolled_back_with_its_head_is_refused",
            MISSING_CHARGES + "a_rolled_back_ledger_that_went_on_with_other_runs_is_refused",
            MISSING_CHARGES + "what_is_missing_is_charged_and_the_run_goes_on",
        ),
    ),
    "ledger deleted and made anew": (
        "refused: a run belongs to the ledger it began with",
        (
            MISSING_CHARGES + "a_ledger_that_was_made_anew_is_refused",
            MISSING_CHARGES + "a_new_ledger_takes_over_with_all_that_was_lost_to_crashes",
        ),
    ),
    "released metrics that the ledger has not charged": (
        "refused",
        (MISSING_CHARGES + "metrics_that_are_not_charged_are_refused",),
    ),
    "ledger replaced during a run": (
        "no statement is made",
        (MISSING_CHARGES + "a_run_whose_ledger_lost_charges_states_no_epsilon",),
    ),
    "checkpoint of the same round but another history": (
        "refused",
        (MISSING_CHARGES + "a_checkpoint_of_the_same_round_but_another_history_is_refused",),
    ),
    "settings chosen after looking at earlier releases": (
        "a cap holds, at 1.01·δ",
        (
            ADAPTIVE + "every_path_is_within_the_cap_and_the_whole_is_not",
            ADAPTIVE + "the_ledger_refuses_one_of_the_paths",
            ADAPTIVE + "a_plan_with_both_kinds_does_not_open_both_rules",
            ADAPTIVE + "the_worst_choice_between_all_that_is_allowed_keeps_the_promise",
        ),
    ),
    "a client joins or leaves between runs": (
        "every client keeps its account, and a cap holds for each",
        (
            POPULATIONS + "who_stays_keeps_its_account_when_others_leave_and_join",
            POPULATIONS + "a_cap_holds_for_each_client_and_says_how_many_would_pass_it",
        ),
    ),
    "two ledgers for the same clients in one folder": (
        "both are named in a warning",
        (
            POPULATIONS + "two_ledgers_for_the_same_clients_in_one_folder_are_named",
            MISSING_CHARGES + "a_second_ledger_for_the_same_clients_is_named",
        ),
    ),
    "extreme legal settings": (
        "a bound or a sentence, in bounded time",
        (
            EXTREMES + "every_option_of_pmtl_privacy_at_its_extremes",
            EXTREMES + "every_option_of_pmtl_train_at_its_extremes",
            EXTREMES + "production_with_noise_of_a_million_is_refused_in_a_sentence",
        ),
    ),
    "a sampler whose mean is right and whose distribution is not": (
        "caught by tests and by `pmtl audit`",
        ("tests/audit/test_games_mutants.py::test_a_wrong_draw_is_caught_in_production_too",),
    ),
    "one noise for several numbers": (
        "caught by tests and by `pmtl audit`",
        ("tests/audit/test_games_mutants.py::test_one_exact_noise_for_all_metrics_is_caught",),
    ),
    "caps at several δ": (
        "each is kept",
        ("tests/privacy/ledger/test_account_caps.py::test_each_of_several_caps_is_kept",),
    ),
    "a client that fails": (
        "has a row in the store like everybody who was drawn",
        (PRODUCTION + "a_client_that_fails_has_a_row_like_everybody_who_was_drawn",),
    ),
    "a client whose upload has a wrong shape, type or device, or whose `predict` fails": (
        "counts as zero, or has the model of a client that was never sampled",
        (
            FINAL + "an_upload_of_another_shape_or_type_counts_as_zero",
            FINAL + "a_client_whose_predict_fails_has_the_shared_model",
            "tests/federation/test_federation_training.py::test_an_upload_of_a_wrong_shape_or_type_is_a_failure",
            "tests/federation/test_federation_training.py::"
            "test_a_client_whose_weights_cannot_be_computed_has_those_of_a_newcomer",
        ),
    ),
    "how many clients were ever sampled": (
        "is in no file that others may read",
        (PRODUCTION + "nothing_public_says_how_many_clients_were_ever_sampled",),
    ),
    "a client's values, number of rows, failure or lack of memory": (
        "change no byte of anything that another client gets",
        (
            INTERFERENCE + "no_change_of_one_clients_rows_reaches_anybody_else",
            INTERFERENCE + "with_every_model",
            INTERFERENCE + "with_every_algorithm",
            INTERFERENCE + "on_sparse_rows",
            INTERFERENCE + "after_fine_tuning",
            INTERFERENCE + "a_client_with_very_many_rows_decides_about_nothing",
            INTERFERENCE + "a_client_whose_rows_move_the_table_to_disk_decides_about_nothing",
            INTERFERENCE + "what_everybody_can_read_and_is_told_stays_the_same",
        ),
    ),
    "a client is in a cohort or not": (
        "the same: everybody's part of a round does not depend on who else takes part",
        (
            INTERFERENCE + "whether_one_client_is_drawn_reaches_nobody_else",
            INTERFERENCE + "with_two_threads_and_large_arrays",
            "tests/privacy/test_release.py::test_a_clipped_upload_does_not_depend_on_the_others",
        ),
    ),
    "a row with a missing, infinite or impossible value in production": (
        "is left out; no message names it but in the owner's notes",
        (
            LENIENT + "a_bad_cell_leaves_its_row_out_and_nobody_elses",
            LENIENT + "a_row_that_does_not_fit_leaves_the_others_as_they_are",
            LENIENT + "an_unknown_word_in_the_split_leaves_its_row_out",
            LENIENT + "a_client_without_a_row_that_can_be_used_stays_a_client",
            LENIENT + "one_clients_validation_rows_do_not_decide_about_everybodys",
        ),
    ),
    "a file that cannot be read in production": (
        "the refusal quotes no row; `pmtl data show` tells the owner",
        (LENIENT + "a_file_that_cannot_be_read_quotes_nothing_in_production",),
    ),
    "an unknown sampling scheme, or one that does not say its cost": (
        "refused in a plan, an event, a ledger and run.json; never priced as another",
        (
            "tests/privacy/test_sampling_own.py::test_what_is_not_a_scheme_is_refused",
            "tests/privacy/test_sampling_own.py::test_without_a_cost_nothing_can_be_charged",
        ),
    ),
}


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(part.name for part in tree.body if isinstance(part, ast.FunctionDef))


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test_that_is_there(case):
    _, tests = CASES[case]
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert name in names_in(file), f"{file} has no {name}"


@pytest.mark.parametrize("part", ["gate", "noise", "runs"])
def test_every_test_of_a_failure_case_is_in_the_table(part):
    file = f"tests/privacy/test_failure_cases_{part}.py"
    listed = {test.partition("::")[2] for _, tests in CASES.values() for test in tests}
    assert {name for name in names_in(file) if name.startswith("test_")} <= listed


def link(test: str) -> str:
    file, _, name = test.partition("::")
    return f'[{Path(file).stem.removeprefix("test_")}](../{file} "{name}")'


def test_the_table_of_the_documentation_is_this_one():
    lines = ["| case | what happens | held by |", "| --- | --- | --- |"]
    for case, (behaviour, tests) in CASES.items():
        lines.append(f"| {case} | {behaviour} | {', '.join(map(link, tests))} |")
    page = (ROOT / "docs/privacy.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- failures -->\n")[2].partition("\n<!-- /failures -->")[0]
    assert shown == "\n".join(lines), "put this into docs/privacy.md:\n" + "\n".join(lines)
