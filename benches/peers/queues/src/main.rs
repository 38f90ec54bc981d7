//! Other job queues, measured in a process of their own: SQLite can be linked into a program only
//! once, and theirs is another release than ours.
//!
//! Each line of input is answered by one of output, a rate per second:
//!
//! ```text
//! enqueue CALLERS JOBS    so many jobs by so many callers at once, each waiting for its own
//! drain JOBS              the worker, until so many jobs are done
//! ```

mod apalis_sqlite;
mod awa_postgres;
mod graphile;
mod work;

use std::io::{BufRead, Write};

/// A queue that is measured.
trait Queue {
    /// Enqueues one job; it is committed when this returns.
    fn enqueue(&self) -> impl Future<Output = ()> + Send + 'static;

    /// Works until so many jobs are done; how many seconds that took.
    async fn drain(&self, jobs: usize) -> f64;
}

#[tokio::main]
async fn main() {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match *arguments {
        ["apalis", path, connections] => {
            let connections = connections.parse().expect("a number");
            serve(&apalis_sqlite::Apalis::open(path, connections).await).await;
        }
        ["awa", url] => serve(&awa_postgres::Awa::open(url).await).await,
        ["graphile", url, size] => {
            let size = size.parse().expect("a number");
            serve(&graphile::Graphile::open(url, size).await).await;
        }
        _ => panic!("no such queue: {arguments:?}"),
    }
}

async fn serve(queue: &impl Queue) {
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line");
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        let rate = match words[0] {
            "enqueue" => work::enqueue(queue, number(1), number(2)).await,
            "drain" => number(1) as f64 / queue.drain(number(1)).await,
            other => panic!("no such thing: {other}"),
        };
        println!("{rate}");
        std::io::stdout().flush().expect("output");
    }
}
