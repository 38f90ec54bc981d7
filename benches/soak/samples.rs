//! Samples of the process's resources, one a second.

use std::{fs, time::Duration};

use tokio::runtime::Handle;

use crate::{
    ALLOCATOR,
    middle::median,
    report::Report,
    table::{Figure, Table},
};

/// Memory is flat if it grows by no more than this, in all and by call: the first finds what is left
/// behind in ten minutes, the second in one.
pub(crate) const FLAT: f64 = 1.05;
const BYTES_A_CALL: f64 = 128.0;
const MEGABYTE: f64 = 1024.0 * 1024.0;
const PAGE: f64 = 4096.0;
const ROWS: usize = 12;
/// Of an hour: more need memory of their own.
const MOST: usize = 3600;
/// So many after the warm-up tell whether something grows.
pub(crate) const ENOUGH: usize = 30;

#[derive(Clone, Copy, Default)]
struct Sample {
    at: Duration,
    warm: bool,
    /// Megabytes that the process takes, and that it has allocated.
    resident: f64,
    allocated: f64,
    /// So far.
    calls: u64,
    tasks: usize,
    files: usize,
    others: [u64; 2],
}

type What = fn(&Sample) -> f64;

/// Samples, with two more figures of these names.
pub(crate) struct Samples {
    all: Vec<Sample>,
    others: [&'static str; 2],
}

/// Tasks that have not ended.
pub(crate) fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Files and sockets that are open; none where the system does not tell.
pub(crate) fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

pub(crate) fn open_files_allowed() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

fn resident() -> Option<f64> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = pages.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * PAGE / MEGABYTE)
}

impl Samples {
    pub(crate) fn new(others: [&'static str; 2]) -> Self {
        let all = Vec::with_capacity(MOST);
        Self { all, others }
    }

    pub(crate) fn take(&mut self, at: Duration, warm: bool, calls: u64, others: [u64; 2]) {
        self.all.push(Sample {
            at,
            warm,
            calls,
            resident: resident().unwrap_or_default(),
            allocated: ALLOCATOR.allocated() as f64 / MEGABYTE,
            tasks: tasks(),
            files: open_files(),
            others,
        });
    }

    /// Returns the number of samples after the warm-up.
    pub(crate) fn warm(&self) -> usize {
        self.all.iter().filter(|sample| sample.warm).count()
    }

    pub(crate) fn last_line(&self) -> String {
        let last = self.all.last().copied().unwrap_or_default();
        format!(
            "{:>6.1} MB ({:.1} allocated)  {:>5} tasks  {:>5} files  {:>6} {}",
            last.resident, last.allocated, last.tasks, last.files, last.others[1], self.others[1]
        )
    }

    /// Some of them.
    pub(crate) fn table(&self) -> Table {
        let [one, other] = self.others;
        let columns = ["resident", "allocated", "tasks", "files", one, other];
        let mut table = Table::new("after", columns);
        let step = self.all.len().div_ceil(ROWS).max(1);
        let last = self.all.len().saturating_sub(1);
        let shown = |at: &usize| at.is_multiple_of(step) && at + step / 2 < last || *at == last;
        for sample in (0..self.all.len()).filter(shown).map(|at| self.all[at]) {
            let figures = vec![
                Figure::Megabytes(sample.resident),
                Figure::Megabytes(sample.allocated),
                Figure::Count(sample.tasks as u64),
                Figure::Count(sample.files as u64),
                Figure::Count(sample.others[0]),
                Figure::Count(sample.others[1]),
            ];
            let warm = if sample.warm { "" } else { ", warming up" };
            table.row(format!("{} s{warm}", sample.at.as_secs()), figures);
        }
        table
    }

    /// Judges by medians, with a bound for what the process takes and one for tasks and files.
    pub(crate) fn judge(&self, report: &mut Report, resident: f64, counts: f64) {
        let warm: Vec<_> = self.all.iter().filter(|sample| sample.warm).collect();
        let fifth = warm.len() / 5;
        report.at_least("seconds_after_warm_up", warm.len() as f64, ENOUGH as f64);
        if fifth == 0 {
            return;
        }
        let of = |samples: &[&Sample], what: What| {
            median(samples.iter().map(|sample| what(sample)).collect())
        };
        let whats: [(&str, f64, What); 4] = [
            ("resident", resident, |sample| sample.resident),
            ("allocated", FLAT, |sample| sample.allocated),
            ("tasks", counts, |sample| sample.tasks as f64),
            ("files", counts, |sample| sample.files as f64),
        ];
        for (name, flat, what) in whats {
            let (first, last) = (
                of(&warm[..fifth], what),
                of(&warm[warm.len() - fifth..], what),
            );
            report.note(&format!("{name}_after_warm_up"), first);
            report.note(&format!("{name}_at_the_end"), last);
            // A figure that the system does not report is 0, and does not grow.
            report.at_most(&format!("{name}_growth"), last / first.max(1.0), flat);
        }
        let (first, last) = (&warm[..fifth], &warm[warm.len() - fifth..]);
        let more = |what: What| of(last, what) - of(first, what);
        let bytes = more(|sample| sample.allocated) * MEGABYTE;
        let calls = more(|sample| sample.calls as f64).max(1.0);
        report.at_most("bytes_left_by_a_call", bytes / calls, BYTES_A_CALL);
    }

    /// Returns the most that the process took in the second half after the warm-up, as a multiple of
    /// that in the first. Bursts decide how much it takes from the system, and it keeps that.
    pub(crate) fn peak_growth(&self) -> f64 {
        let warm = self.all.iter().skip_while(|sample| !sample.warm);
        let warm: Vec<_> = warm.map(|sample| sample.resident).collect();
        let (first, second) = warm.split_at(warm.len() / 2);
        let peak = |half: &[f64]| half.iter().copied().fold(0.0, f64::max);
        peak(second) / peak(first).max(1.0)
    }

    /// Returns the greatest of one of the two other figures.
    pub(crate) fn most(&self, other: usize) -> f64 {
        let others = self.all.iter().map(|sample| sample.others[other]);
        others.max().unwrap_or_default() as f64
    }
}
