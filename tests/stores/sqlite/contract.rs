//! The contract of all stores, several processes, and kills.

use tokio::task::JoinSet;
use tower_reprise::store::{Claimed, IdempotencyStore, conformance};

use super::{Folder, Sqlite};
use crate::support::{crash, records::claim};

#[tokio::test]
async fn t_1_t_2_t_3_the_contract() {
    conformance::run(&Sqlite::new()).await;
}

#[tokio::test]
async fn i_27_t_2_the_contract_of_unknown_outcomes() {
    conformance::unknown_outcomes(&Sqlite::new()).await;
}

#[tokio::test]
async fn t_1_t_2_the_model() {
    for seed in 0..20 {
        conformance::model(&Sqlite::new(), seed, 500).await;
    }
}

#[test]
#[ignore = "the others run it, in processes of their own"]
fn child() {
    crash::child::<Sqlite>();
}

#[tokio::test]
async fn i_6_one_of_two_processes_wins() {
    let folder = Folder::on_disk();
    crash::race::<Sqlite>(folder.file().to_str().unwrap()).await;
}

#[tokio::test]
async fn t_4_i_14_nothing_acknowledged_is_lost_to_a_kill() {
    let folder = Folder::on_disk();
    crash::killed::<Sqlite>(folder.file().to_str().unwrap(), 50).await;
}

#[tokio::test]
async fn i_15_a_stopped_owner_is_too_late() {
    let folder = Folder::on_disk();
    crash::stopped::<Sqlite>(folder.file().to_str().unwrap()).await;
}

/// Claims from many threads at once, not just from many tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_one_of_a_hundred_claims_wins() {
    let sqlite = Sqlite::new();
    let store = sqlite.open();
    for key in 0..20 {
        let mut claims = JoinSet::new();
        for _ in 0..100 {
            let store = store.clone();
            claims.spawn(async move { store.claim(claim(key)).await.unwrap() });
        }
        let claimed = claims.join_all().await.into_iter();
        let won = claimed.filter(|claimed| matches!(claimed, Claimed::New(_)));
        assert_eq!(won.count(), 1);
    }
}
