"""The report that ranks exchange: exact sums, and a fixed size whatever the reasons."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.totals import (
    OTHER_REASONS,
    REPORT_BYTES,
    RankReport,
    critical_ratio,
    critical_tokens,
    encode_report,
    sum_reports,
)

reports = st.builds(
    RankReport,
    st.dictionaries(st.text(min_size=1, max_size=30), st.integers(1, 10**9), max_size=40),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)


@given(st.lists(reports, min_size=1, max_size=4))
def test_totals_are_exact_and_the_size_is_fixed(ranks):
    rows = [encode_report(report) for report in ranks]
    assert {row.nbytes for row in rows} == {REPORT_BYTES}
    together = sum_reports(np.stack(rows))
    assert sum(together.dropped.values()) == sum(sum(report.dropped.values()) for report in ranks)
    assert together.solo == sum(report.solo for report in ranks)
    assert together.max_delay == max(report.max_delay for report in ranks)


def test_reasons_keep_their_names_where_they_fit_and_the_rarest_are_lumped():
    rows = np.stack([encode_report(RankReport({"empty": 2, "too_long": 1})), encode_report(RankReport({"empty": 5}))])
    assert sum_reports(rows).dropped == {"empty": 7, "too_long": 1}
    many = RankReport({f"reason_number_{i:03d}": i + 1 for i in range(100)})
    dropped = sum_reports(encode_report(many)[None]).dropped
    assert dropped["reason_number_099"] == 100
    assert "reason_number_000" not in dropped
    assert dropped[OTHER_REASONS] > 1


@given(st.integers(1, 2**50), st.integers(1, 64), st.integers(0, 2**50))
def test_the_critical_tokens_are_recovered_from_the_ratio(real: int, ranks: int, critical: int) -> None:
    assert critical_tokens(critical_ratio(critical, real, ranks), real, ranks) == critical
