//! How many commits there are, when one would do for all.

/// How often to look again, once there was nothing more.
const LOOKS: u32 = 8;

/// Lets others go on for as long as that makes more of what is counted, or until there is enough,
/// and says how much there is. A look costs next to nothing, while whoever comes a moment too late
/// waits for a whole commit, and then needs another one.
pub(crate) async fn gathered(enough: usize, mut count: impl FnMut() -> usize) -> usize {
    let mut gathered = count();
    let mut looks = 0;
    while gathered < enough && looks < LOOKS {
        tokio::task::yield_now().await;
        let counted = count();
        looks = if counted > gathered { 0 } else { looks + 1 };
        gathered = counted;
    }
    gathered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waits_while_there_is_more() {
        let mut counts = [1, 1, 2, 2, 2, 5].into_iter();
        let count = || counts.next().unwrap_or(5);
        assert_eq!(gathered(100, count).await, 5);
    }

    #[tokio::test]
    async fn waits_no_longer_than_for_enough() {
        let mut counts = 3..;
        let count = || counts.next().unwrap_or_default();
        assert_eq!(gathered(7, count).await, 7);
        assert_eq!(counts.next(), Some(8), "nobody looked again");
    }
}
