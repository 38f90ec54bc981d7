use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::value::integer;

/// IMF-fixdate, RFC 850, asctime.
const DATE_FORMATS: [&str; 3] = [
    "%a, %d %b %Y %T GMT",
    "%A, %d-%b-%y %T GMT",
    "%a %b %e %T %Y",
];
const WEEKDAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The mean of 400 years, after which the calendar repeats.
const SECONDS_PER_YEAR: i64 = 31_556_952;
/// Counted from the first day of year 1.
const DAYS_BEFORE_1970: i64 = 719_162;

/// Parses an HTTP-date: IMF-fixdate, RFC 850 or asctime (RFC 9110, 5.6.7).
///
/// The grammar is strict, except that any weekday goes with any date. A two-digit year
/// is the latest one that is not more than 50 years after `now`. A leap second is the first second
/// of the next minute.
#[must_use]
pub fn http_date(value: &[u8], now: SystemTime) -> Option<SystemTime> {
    let date = DATE_FORMATS
        .iter()
        .find_map(|format| Date::parse(format, value, now))?;
    system_time(date.unix_seconds())
}

/// Parses a timestamp of RFC 3339: `2026-11-18T20:05:00Z`, with an optional fraction and any offset.
///
/// A blank may stand for the `T`. A leap second is the first second of the next minute.
#[must_use]
pub fn rfc3339_date(value: &[u8]) -> Option<SystemTime> {
    let mut rest = Cursor(value);
    let mut date = Date {
        year: rest.digits(4)?,
        ..Date::default()
    };
    rest.literal("-")?;
    date.month = rest.digits(2)?;
    rest.literal("-")?;
    date.day = rest.digits(2)?;
    ["T", "t", " "].iter().find_map(|t| rest.literal(t))?;
    date.time = rest.time()?;
    let fraction = rest.fraction()?;
    let offset = rest.offset()?;
    let exists =
        (1..=12).contains(&date.month) && (1..=days_in(date.year, date.month)).contains(&date.day);
    if !exists || !rest.0.is_empty() {
        return None;
    }
    system_time(date.unix_seconds() - offset)?.checked_add(fraction)
}

fn system_time(seconds: i64) -> Option<SystemTime> {
    let distance = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 {
        UNIX_EPOCH.checked_sub(distance)
    } else {
        UNIX_EPOCH.checked_add(distance)
    }
}

/// A date of the Gregorian calendar and the seconds since its midnight.
#[derive(Default)]
struct Date {
    year: i64,
    month: i64,
    day: i64,
    time: i64,
}

impl Date {
    /// Reads `value` by a format of conversions, as in `strftime`, and literal text.
    fn parse(format: &str, value: &[u8], now: SystemTime) -> Option<Self> {
        let mut rest = Cursor(value);
        let mut date = Self::default();
        let mut short_year = false;
        for conversion in format.split('%').skip(1) {
            let (kind, literal) = conversion.split_at(1);
            match kind {
                "a" => {
                    rest.name(WEEKDAYS.map(|name| &name[..3]))?;
                }
                "A" => {
                    rest.name(WEEKDAYS)?;
                }
                "b" => date.month = rest.name(MONTHS)?,
                "e" if rest.literal(" ").is_some() => date.day = rest.digits(1)?,
                "d" | "e" => date.day = rest.digits(2)?,
                "T" => date.time = rest.time()?,
                "y" => (date.year, short_year) = (rest.digits(2)?, true),
                _ => date.year = rest.digits(4)?,
            }
            rest.literal(literal)?;
        }
        if short_year {
            date.choose_century(now);
        }
        let day_exists = (1..=days_in(date.year, date.month)).contains(&date.day);
        (rest.0.is_empty() && day_exists).then_some(date)
    }

    /// Completes a two-digit year. For the limit of 50 years, 29 February is 1 March in a year that
    /// has none.
    fn choose_century(&mut self, now: SystemTime) {
        let now = unix_seconds(now);
        // Right to within a year, which is enough to leave no more than two centuries to choose from.
        let this_year = 1970 + now / SECONDS_PER_YEAR;
        self.year = this_year + (self.year - this_year).rem_euclid(100) - 50;
        if self.unix_seconds() > now {
            self.year -= 100;
        }
        self.year += 50;
    }

    fn unix_seconds(&self) -> i64 {
        let past = self.year - 1;
        let leap_days = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
        let months: i64 = (1..self.month).map(|month| days_in(self.year, month)).sum();
        let days = past * 365 + leap_days + months + self.day - 1 - DAYS_BEFORE_1970;
        days.saturating_mul(86_400).saturating_add(self.time)
    }
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Returns whole seconds since 1970.
fn unix_seconds(time: SystemTime) -> i64 {
    let whole = |distance: Duration| i64::try_from(distance.as_secs()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => whole(after),
        Err(before) => -whole(before.duration()),
    }
}

/// The unread rest of a date.
struct Cursor<'a>(&'a [u8]);

impl Cursor<'_> {
    fn literal(&mut self, expected: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(expected.as_bytes())?;
        Some(())
    }

    /// Reads one of `names`, and returns its place among them, counted from 1.
    fn name<const N: usize>(&mut self, names: [&str; N]) -> Option<i64> {
        let mut places = (1..).zip(names);
        places.find_map(|(place, name)| self.literal(name).map(|()| place))
    }

    fn digits(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        integer(digits)?.try_into().ok()
    }

    /// Reads `hh:mm:ss` as seconds since midnight.
    fn time(&mut self) -> Option<i64> {
        let hour = self.digits(2)?;
        self.literal(":")?;
        let minute = self.digits(2)?;
        self.literal(":")?;
        let second = self.digits(2)?;
        (hour <= 23 && minute <= 59 && second <= 60).then_some((hour * 60 + minute) * 60 + second)
    }

    /// Reads `.` and digits, of which nine count, or nothing.
    fn fraction(&mut self) -> Option<Duration> {
        if self.literal(".").is_none() {
            return Some(Duration::ZERO);
        }
        let digits = self.0.iter().take_while(|byte| byte.is_ascii_digit());
        let (digits, rest) = self.0.split_at(digits.count());
        self.0 = rest;
        let counted = &digits[..digits.len().min(9)];
        let missing = 9 - u32::try_from(counted.len()).ok()?;
        Some(Duration::from_nanos(
            integer(counted)? * 10_u64.pow(missing),
        ))
    }

    /// Reads `Z` or `±hh:mm` as seconds east of Greenwich.
    fn offset(&mut self) -> Option<i64> {
        if self.literal("Z").or_else(|| self.literal("z")).is_some() {
            return Some(0);
        }
        let east = if self.literal("+").is_some() {
            1
        } else {
            self.literal("-").map(|()| -1)?
        };
        let hours = self.digits(2)?;
        self.literal(":")?;
        let minutes = self.digits(2)?;
        (hours <= 23 && minutes <= 59).then_some(east * (hours * 60 + minutes) * 60)
    }
}
