"""Numbers as people read them, one way for each kind, everywhere: screens, pages, messages.

Pure. Whole numbers are in `--json`; anyone may import it.
"""

from mainspring.protocol.timeouts import CLOCK_OFF_S
from mainspring.rewards.passk import wilson


def percent(share: float | None) -> str:
    """53 %, and a digit more where it tells something: below 1 % and above 99 %."""
    if share is None:
        return "-"
    edge = 0 < share < 0.01 or 0.99 < share < 1
    return f"{100 * share:.1f} %" if edge else f"{100 * share:.0f} %"


def share_of(num: int, of: int) -> str:
    """A share with its 95 % interval: 53 % (44-62 %)."""
    if of == 0:
        return "-"
    low, high = wilson(num / of, of)
    return f"{percent(num / of)} ({100 * low:.0f}-{100 * high:.0f} %)"


def duration(seconds: float | None) -> str:
    """9 min 34 s; 2 h 03 min; 1.5 s; 30 ms."""
    if seconds is None:
        return "-"
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def age(seconds: float) -> str:
    """In its largest unit: 34 s; 3 min; 6 h; 2 d."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def dollars(amount: float | None) -> str:
    """$1.23; below a cent two digits that tell something: $0.0012."""
    if amount is None:
        return "-"
    return f"${amount:,.2f}" if amount >= 0.01 or amount == 0 else f"${amount:.2g}"


def file_size(num_bytes: int) -> str:
    """1.2 MB; 3.4 GB."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def clock_told(off_s: float) -> str:
    """How far a machine's clock is from the database's, in words; empty: near enough."""
    if abs(off_s) <= CLOCK_OFF_S:
        return ""
    return f"{duration(abs(off_s))} {'ahead of' if off_s > 0 else 'behind'} the database's clock"


def number(value: float | None, digits: int = 2) -> str:
    """A measured number, short: 0.42, 1.5e-05, 12."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.{digits}f}" if 0.01 <= abs(value) < 1e6 else f"{value:.1e}"
