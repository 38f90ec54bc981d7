mod commands;
mod leasing;
mod queueing;
mod reading;
mod settling;

use std::{sync::Arc, time::Duration};

use super::Backend;

use crate::store::{
    Fingerprint,
    Ownership::Held,
    RecordKey,
    journal::{
        Dedup, Enqueued, Entry, EntryCommand, EntryId, Journal, LeaseRequest, NewEntry, Query,
        Settlement, Status,
    },
};

const LEASE: u32 = 5;

const KEEP: u32 = 20;

const TTL: u32 = 50;

/// Runs every case of a [`Journal`], one after the other. Queues have random names, so that the
/// journal need not be empty.
///
/// # Panics
///
/// When the store breaks the contract.
pub async fn journal<B: Backend<Store: Journal>>(backend: &B) {
    let new = async || Case {
        store: Arc::new(backend.open().await),
        other: Arc::new(backend.open().await),
        backend,
        unit: backend.unit(),
        queue: format!("q{:016x}", rand::random::<u64>()),
    };
    queueing::what_is_queued_comes_back_whole(&new().await).await;
    queueing::enqueuing_can_be_repeated(&new().await).await;
    queueing::the_same_operation_is_queued_once(&new().await).await;
    queueing::what_was_called_off_frees_its_key(&new().await).await;
    leasing::order_is_priority_then_due_then_sequence(&new().await).await;
    leasing::lanes_are_independent(&new().await).await;
    leasing::many_workers_share_without_overlap(&new().await).await;
    leasing::a_lease_runs_out_and_counts(&new().await).await;
    leasing::a_lease_that_ran_out_is_its_owners_until_taken(&new().await).await;
    leasing::a_stale_turn_changes_nothing(&new().await).await;
    settling::a_settlement_can_be_repeated(&new().await).await;
    settling::a_retry_waits_and_a_release_does_not_count(&new().await).await;
    settling::causes_and_redrives_are_counted(&new().await).await;
    settling::an_outcome_and_its_outbox_are_one(&new().await).await;
    commands::cancel_and_lease_have_one_winner(&new().await).await;
    commands::what_is_triggered_goes_first(&new().await).await;
    commands::what_is_past_its_time_is_only_leased_to_be_told_so(&new().await).await;
    commands::a_dead_letter_is_redriven_once(&new().await).await;
    commands::what_is_over_is_kept_for_its_time(&new().await).await;
    reading::lists_page_and_filter(&new().await).await;
    reading::counts_and_positions_add_up(&new().await).await;
    reading::nothing_is_known_of_what_is_not_there(&new().await).await;
    reading::any_duration_is_taken(&new().await).await;
    reading::secrets_are_shared(&new().await).await;
}

struct Case<'a, B: Backend> {
    backend: &'a B,
    store: Arc<B::Store>,
    /// The same journal, through another handle.
    other: Arc<B::Store>,
    unit: Duration,
    queue: String,
}

impl<B: Backend<Store: Journal>> Case<'_, B> {
    fn entry(&self) -> NewEntry {
        NewEntry {
            ttl: self.unit * TTL,
            ..NewEntry::new(self.queue.clone(), "payload")
        }
    }

    fn keep(&self) -> Duration {
        self.unit * KEEP
    }

    async fn pass(&self, units: u32) {
        self.backend.pass(self.unit * units).await;
    }

    async fn put(&self, entry: NewEntry) -> EntryId {
        let id = entry.id;
        match self.store.enqueue(entry).await.expect("enqueue") {
            Enqueued::New(entry) if entry.id == id => id,
            other => panic!("it should be new, but is {other:?}"),
        }
    }

    fn want(&self, lane: &str, limit: u32) -> LeaseRequest {
        LeaseRequest::new(self.queue.clone(), lane, limit, self.unit * LEASE)
    }

    async fn lease(&self, limit: u32) -> Vec<Entry> {
        self.store.lease(self.want("", limit)).await.expect("lease")
    }

    async fn lease_one(&self) -> Entry {
        let mut leased = self.lease(1).await;
        leased.pop().expect("something to lease")
    }

    async fn settle(&self, entry: &Entry, settle: Settlement) {
        let settled = self.store.settle(entry.id, entry.lease_token, settle).await;
        assert_eq!(settled.expect("settle"), Held);
    }

    async fn command(&self, id: EntryId, command: EntryCommand) -> (bool, Status) {
        let result = self.store.command(id, command).await.expect("command");
        let result = result.expect("an entry");
        (result.applied, result.entry.status)
    }

    async fn find(&self, id: EntryId) -> Option<Entry> {
        self.other.find(id).await.expect("find")
    }

    async fn status(&self, id: EntryId) -> Option<Status> {
        self.find(id).await.map(|entry| entry.status)
    }

    async fn list(&self, query: Query) -> Vec<Entry> {
        self.other.list(query).await.expect("list")
    }
}

fn ids(entries: &[Entry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

fn dedup(key: u8, fingerprint: u8) -> Option<Dedup> {
    Some(Dedup {
        key: RecordKey::new([key; 32]),
        fingerprint: Fingerprint::new([fingerprint; 32]),
    })
}
