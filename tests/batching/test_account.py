"""The account that ranks exchange: exact sums, and a fixed size whatever the reasons."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from odb_stream.batching.account import ACCOUNT_BYTES, REST, Account, encode, total

accounts = st.builds(
    Account,
    st.dictionaries(st.text(min_size=1, max_size=30), st.integers(1, 10**9), max_size=40),
    st.integers(0, 10**6),
    st.integers(0, 10**6),
)


@given(st.lists(accounts, min_size=1, max_size=4))
def test_totals_are_exact_and_the_size_is_fixed(ranks):
    rows = [encode(account) for account in ranks]
    assert {row.nbytes for row in rows} == {ACCOUNT_BYTES}
    together = total(np.stack(rows))
    assert sum(together.dropped.values()) == sum(sum(account.dropped.values()) for account in ranks)
    assert together.solo == sum(account.solo for account in ranks)
    assert together.max_delay == max(account.max_delay for account in ranks)


def test_reasons_keep_their_names_where_they_fit():
    rows = np.stack([encode(Account({"empty": 2, "too_long": 1})), encode(Account({"empty": 5}))])
    assert total(rows).dropped == {"empty": 7, "too_long": 1}


def test_the_rarest_reasons_are_lumped_when_there_are_too_many():
    dropped = total(encode(Account({f"reason_number_{i:03d}": i + 1 for i in range(100)}))[None]).dropped
    assert dropped["reason_number_099"] == 100
    assert "reason_number_000" not in dropped
    assert dropped[REST] > 1
