//! Whether all that is known of the replays fits together: what callers were told, the journal, the
//! idempotency records, the ledger, and what the receiver of callbacks got.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use tower_reprise::{
    delivery::replay::ReplayId,
    store::{
        IdempotencyStore,
        journal::{Entry, EntryId, Journal, Status},
    },
};

use crate::{
    backend::Site,
    killed::{SENDERS, Told, body, ttl},
    ledger::Ledger,
    receiver::Receiver,
    shop::{CONCURRENCY, Shop},
};

/// The executions, by the number of the request.
type Done = HashMap<u64, Vec<String>>;

pub(crate) async fn audit<J>(shop: &Shop<J>, site: &Site, told: &Told, receiver: &Receiver)
where
    J: IdempotencyStore + Journal + Clone,
{
    let mut done = Done::new();
    for words in Ledger::read(&site.ledger) {
        let executions = done.entry(words[0].parse().unwrap()).or_default();
        executions.push(words[1..].join(" "));
    }
    let replays = shop.all("replay").await;
    acknowledged(told, &replays);

    let numbers: HashMap<ReplayId, u64> = told
        .replays
        .iter()
        .flat_map(|(number, ids)| ids.iter().map(|id| (*id, *number)))
        .collect();
    for (number, executions) in &done {
        let replayed = executions.iter().filter(|it| !it.starts_with("accept"));
        assert!(replayed.count() <= 3, "J-11: {number} was {executions:?}");
    }
    let mut committed = HashMap::new();
    for (number, executions) in &told.executions {
        assert_eq!(executions.len(), 1, "{number} has two results");
        committed.extend(executions.iter().map(|it| (*number, it.clone())));
    }
    let mut killers = Vec::new();
    for entry in &replays {
        let id = ReplayId::from(entry.id);
        // Nobody was told of the others: only that they ended is known.
        let Some(number) = numbers.get(&id).copied() else {
            continue;
        };
        let ran = done.get(&number).map(Vec::as_slice).unwrap_or_default();
        match entry.status {
            Status::Completed => {
                let reply = shop.replay.reply("ada", id).await.unwrap().unwrap();
                let reply: Value = serde_json::from_slice(reply.body()).unwrap();
                let execution = reply["execution"].as_str().unwrap().to_owned();
                assert!(ran.contains(&execution), "{number} was not done: {ran:?}");
                let record = shop.send_inside(&number.to_string(), body(number)).await;
                assert!(record.replayed, "{number}: {record:?}");
                assert_eq!(record.execution(), Some(&*execution), "{number}");
                let before = committed.insert(number, execution.clone());
                assert!(before.is_none_or(|it| it == execution), "{number}");
            }
            Status::Failed => match &*entry.history.last().unwrap().note {
                "replied 422" => assert_eq!((body(number), ran.len()), ("refuse", 0)),
                // J-12: three of its workers were killed, by others, but who knows.
                "its workers died of it" => killers.push(ran.len()),
                note => panic!("{number} failed: {note}"),
            },
            Status::Expired => assert!(ttl(number).is_some(), "{number}"),
            Status::Cancelled => {
                assert!(ran.is_empty(), "J-7: {number} was cancelled and begun");
                assert!(!told.kept.contains(&id), "J-7: {number}");
            }
            status => panic!("{number} is {status:?}"),
        }
        if told.cancelled.contains(&id) {
            assert_eq!(entry.status, Status::Cancelled, "J-7: {number}");
        }
    }
    let twice = superfluous(&done, &committed);
    outbox(shop, &replays, receiver).await;
    let ledger = Ledger::read(&site.ledger);
    assert!(
        ledger.iter().all(|words| words[1] != "audit"),
        "a record was lost: it was done again just now"
    );
    let accepted = numbers.len();
    eprintln!(
        "{accepted} accepted, {} have a result, {twice} done twice, given up as killers: {killers:?}",
        committed.len()
    );
    assert!(committed.len() * 2 > accepted, "most were done");
}

/// J-14, J-3: what got a 202 is there, has one id, and ended.
fn acknowledged(told: &Told, replays: &[Entry]) {
    let ends: HashMap<EntryId, Status> = replays.iter().map(|it| (it.id, it.status)).collect();
    assert_eq!(ends.len(), replays.len(), "an entry is there twice");
    for (number, ids) in &told.replays {
        assert_eq!(ids.len(), 1, "J-3: {number} is {ids:?}");
        for id in ids {
            let status = ends.get(&id.entry());
            let status = status.unwrap_or_else(|| panic!("{number} was accepted and lost"));
            assert!(status.is_over(), "{number} is {status:?}");
        }
    }
}

/// Counts the executions that were not committed because their process was killed first. Asserts
/// that each process has at most as many as it ran at a time.
fn superfluous(done: &Done, committed: &HashMap<u64, String>) -> usize {
    let mut by_life: HashMap<&str, usize> = HashMap::new();
    for (number, executions) in done {
        let last = executions.last().unwrap();
        let committed = committed.get(number).unwrap_or(last);
        for execution in executions.iter().filter(|it| *it != committed) {
            let (life, _) = execution.split_once(' ').unwrap();
            *by_life.entry(life).or_default() += 1;
        }
    }
    for (life, times) in &by_life {
        let most = match life {
            life if life.starts_with("accept") => SENDERS,
            life if life.starts_with("work") => CONCURRENCY,
            _ => 0,
        };
        assert!(*times <= most, "{life} did {times} for nothing");
    }
    by_life.values().sum()
}

/// W-8: each end has one callback, and it was delivered; Q-2: each failure one alert.
async fn outbox<J>(shop: &Shop<J>, replays: &[Entry], receiver: &Receiver)
where
    J: IdempotencyStore + Journal + Clone,
{
    let mut expected: HashMap<String, &str> = HashMap::new();
    let mut failed = HashSet::new();
    for entry in replays {
        let event = match entry.status {
            Status::Completed => "replay.completed",
            Status::Failed => "replay.failed",
            Status::Expired => "replay.expired",
            _ => continue,
        };
        expected.insert(ReplayId::from(entry.id).to_string(), event);
        if entry.status == Status::Failed {
            failed.insert(entry.id);
        }
    }
    let messages = receiver.messages();
    for entry in shop.all("webhooks").await {
        assert_eq!(entry.status, Status::Completed, "{entry:?}");
        let deliveries = messages.get(&entry.id.to_string());
        let deliveries = deliveries.unwrap_or_else(|| panic!("{entry:?} did not arrive"));
        assert!(deliveries.iter().all(|it| *it == deliveries[0]));
        let replay = deliveries[0]["data"]["replay_id"].as_str().unwrap();
        let event = expected.remove(replay);
        assert_eq!(event, Some(&*entry.label), "two callbacks, or a wrong one");
        assert_eq!(event, deliveries[0]["event"].as_str());
    }
    assert!(expected.is_empty(), "no callbacks for {expected:?}");
    for alert in shop.all("reprise.alerts").await {
        let id = EntryId::new((*alert.payload).try_into().unwrap());
        assert!(failed.remove(&id), "two alerts for {id}, or a wrong one");
    }
    assert!(failed.is_empty(), "no alerts for {failed:?}");
}
