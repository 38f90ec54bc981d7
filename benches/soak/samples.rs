//! Samples of the process's resources, one a second.

use std::{fs, time::Duration};

use tokio::runtime::Handle;

use crate::{
    ALLOCATOR, DEPENDENCIES,
    middle::median,
    report::Report,
    server::MOST_RECORDS,
    table::{Figure, Table},
};

/// Memory is flat if it grows by no more than this, in all and by call: the first finds what is left
/// behind in ten minutes, the second in one.
const FLAT: f64 = 1.05;
const BYTES_A_CALL: f64 = 128.0;
const MEGABYTE: f64 = 1024.0 * 1024.0;
const PAGE: f64 = 4096.0;
const ROWS: usize = 12;
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
    dependencies: usize,
    records: u64,
}

type What = fn(&Sample) -> f64;

#[derive(Default)]
pub(crate) struct Samples(Vec<Sample>);

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
    pub(crate) fn take(
        &mut self,
        at: Duration,
        warm: bool,
        calls: u64,
        dependencies: usize,
        records: u64,
    ) {
        self.0.push(Sample {
            at,
            warm,
            calls,
            resident: resident().unwrap_or_default(),
            allocated: ALLOCATOR.allocated() as f64 / MEGABYTE,
            tasks: tasks(),
            files: open_files(),
            dependencies,
            records,
        });
    }

    /// Returns the number of samples after the warm-up.
    pub(crate) fn warm(&self) -> usize {
        self.0.iter().filter(|sample| sample.warm).count()
    }

    pub(crate) fn last_line(&self) -> String {
        let last = self.0.last().copied().unwrap_or_default();
        format!(
            "{:>6.1} MB ({:.1} allocated)  {:>5} tasks  {:>5} files  {:>6} records",
            last.resident, last.allocated, last.tasks, last.files, last.records
        )
    }

    /// Some of them.
    pub(crate) fn table(&self) -> Table {
        let columns = [
            "resident",
            "allocated",
            "tasks",
            "files",
            "dependencies",
            "records",
        ];
        let mut table = Table::new("after", columns);
        let step = self.0.len().div_ceil(ROWS).max(1);
        let last = self.0.len().saturating_sub(1);
        let shown = |at: &usize| at.is_multiple_of(step) && at + step / 2 < last || *at == last;
        for sample in (0..self.0.len()).filter(shown).map(|at| self.0[at]) {
            let figures = vec![
                Figure::Megabytes(sample.resident),
                Figure::Megabytes(sample.allocated),
                Figure::Count(sample.tasks as u64),
                Figure::Count(sample.files as u64),
                Figure::Count(sample.dependencies as u64),
                Figure::Count(sample.records),
            ];
            let warm = if sample.warm { "" } else { ", warming up" };
            table.row(format!("{} s{warm}", sample.at.as_secs()), figures);
        }
        table
    }

    pub(crate) fn judge(&self, report: &mut Report) {
        let warm: Vec<_> = self.0.iter().filter(|sample| sample.warm).collect();
        let fifth = warm.len() / 5;
        report.at_least("seconds_after_warm_up", warm.len() as f64, ENOUGH as f64);
        if fifth == 0 {
            return;
        }
        let of = |samples: &[&Sample], what: What| {
            median(samples.iter().map(|sample| what(sample)).collect())
        };
        let whats: [(&str, What); 4] = [
            ("resident", |sample| sample.resident),
            ("allocated", |sample| sample.allocated),
            ("tasks", |sample| sample.tasks as f64),
            ("files", |sample| sample.files as f64),
        ];
        for (name, what) in whats {
            let (first, last) = (
                of(&warm[..fifth], what),
                of(&warm[warm.len() - fifth..], what),
            );
            report.note(&format!("{name}_after_warm_up"), first);
            report.note(&format!("{name}_at_the_end"), last);
            // A figure that the system does not report is 0, and does not grow.
            report.at_most(&format!("{name}_growth"), last / first.max(1.0), FLAT);
        }
        let (first, last) = (&warm[..fifth], &warm[warm.len() - fifth..]);
        let more = |what: What| of(last, what) - of(first, what);
        let bytes = more(|sample| sample.allocated) * MEGABYTE;
        let calls = more(|sample| sample.calls as f64).max(1.0);
        report.at_most("bytes_left_by_a_call", bytes / calls, BYTES_A_CALL);
        let most = |what: What| self.0.iter().map(what).fold(0.0, f64::max);
        // One more for all that there is no room for.
        let dependencies = most(|sample| sample.dependencies as f64);
        report.at_most("most_dependencies", dependencies, DEPENDENCIES as f64 + 1.0);
        report.at_most(
            "most_records",
            most(|sample| sample.records as f64),
            MOST_RECORDS as f64,
        );
    }
}
