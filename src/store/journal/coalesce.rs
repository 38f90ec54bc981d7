//! Joins concurrent requests, so that one commit does for all of them.

/// Yields in a row without a further request.
const YIELDS: u32 = 8;

/// Yields for as long as that makes the count grow, or until there is enough, and returns the count.
///
/// A yield costs next to nothing, while a request that comes a moment too late waits for a whole
/// commit and then needs another one.
pub(crate) async fn coalesce(enough: usize, mut count: impl FnMut() -> usize) -> usize {
    let mut counted = count();
    let mut yields = 0;
    while counted < enough && yields < YIELDS {
        tokio::task::yield_now().await;
        let now = count();
        yields = if now > counted { 0 } else { yields + 1 };
        counted = now;
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_while_there_is_more() {
        let mut counts = [1, 1, 2, 2, 2, 5].into_iter();
        let count = || counts.next().unwrap_or(5);
        assert_eq!(coalesce(100, count).await, 5);
    }

    #[tokio::test]
    async fn waits_no_longer_than_for_enough() {
        let mut counts = 3..;
        let count = || counts.next().unwrap_or_default();
        assert_eq!(coalesce(7, count).await, 7);
        assert_eq!(counts.next(), Some(8), "nobody looked again");
    }
}
