//! Pairs of layers, and the table of what came of them.

use std::{collections::BTreeSet, fmt, future::Future, pin::Pin};

/// The call of one pair: `Ok` if the reply is the service's own.
pub(crate) type Call = Pin<Box<dyn Future<Output = Result<(), String>>>>;

/// One pair on one platform.
pub(crate) struct Pair {
    pub(crate) outer: &'static str,
    pub(crate) inner: &'static str,
    pub(crate) call: Call,
}

/// The results of all pairs on a platform.
pub(crate) struct Table {
    platform: &'static str,
    called: Vec<(&'static str, &'static str, Result<(), String>)>,
}

impl Table {
    pub(crate) async fn of(platform: &'static str, pairs: Vec<Pair>) -> Self {
        let mut called = Vec::with_capacity(pairs.len());
        for pair in pairs {
            called.push((pair.outer, pair.inner, pair.call.await));
        }
        Self { platform, called }
    }

    /// Prints the table, and fails if a pair does.
    pub(crate) fn check(&self) {
        println!("{self}");
        let failed: Vec<_> = self.called.iter().filter(|pair| pair.2.is_err()).collect();
        assert!(failed.is_empty(), "{}: {failed:#?}", self.platform);
    }
}

/// A row for each layer; a cell says what came of it above and below the column's.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: BTreeSet<_> = self.called.iter().flat_map(|c| [c.0, c.1]).collect();
        let ours: Vec<_> = names.iter().filter(|n| n.starts_with("our ")).collect();
        let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
        writeln!(f, "{}: {} pairs", self.platform, self.called.len())?;
        for (number, name) in ours.iter().enumerate() {
            writeln!(f, "  {number:2} {name}")?;
        }
        write!(f, "{:width$}", "above and below")?;
        for number in 0..ours.len() {
            write!(f, " {number:>4}")?;
        }
        for row in &names {
            write!(f, "\n{row:width$}")?;
            for our in &ours {
                let mark = |outer: &str, inner: &str| {
                    let found = self.called.iter().find(|c| (c.0, c.1) == (outer, inner));
                    found.map_or("·", |c| if c.2.is_ok() { "+" } else { "!" })
                };
                write!(f, "   {}{}", mark(row, our), mark(our, row))?;
            }
        }
        writeln!(f)
    }
}

/// Makes the pairs of two lists of `"name": layer`, in both orders. `$call` takes the layer of a pair
/// and returns its [`Call`].
macro_rules! pairs {
    ($call:path; [$($our:literal: $ours:expr),* $(,)?] $others:tt) => {{
        #[allow(clippy::vec_init_then_push, reason = "the pairs are made one by one")]
        let mut pairs = Vec::new();
        $($crate::table::pairs!(@ours pairs $call; $our: $ours; $others);)*
        pairs
    }};
    (@ours $pairs:ident $call:path; $our:literal: $ours:expr; [$($other:literal: $others:expr),* $(,)?]) => {
        $(
            $pairs.push($crate::table::Pair {
                outer: $our,
                inner: $other,
                call: $call(::tower::ServiceBuilder::new().layer($ours).layer($others).into_inner()),
            });
            $pairs.push($crate::table::Pair {
                outer: $other,
                inner: $our,
                call: $call(::tower::ServiceBuilder::new().layer($others).layer($ours).into_inner()),
            });
        )*
    };
}
pub(crate) use pairs;
