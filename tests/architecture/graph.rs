//! Rooms, floors, and the edges between them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::source::File;

pub(crate) struct Graph {
    floors: &'static [&'static [&'static str]],
    /// From a room to those that it uses, each with the files that do.
    edges: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    root_items: BTreeSet<String>,
}

impl Graph {
    pub(crate) fn new(floors: &'static [&'static [&'static str]]) -> Self {
        Self {
            floors,
            edges: BTreeMap::new(),
            root_items: BTreeSet::new(),
        }
    }

    /// Adds the edge from a file to what a path in it names.
    pub(crate) fn add(&mut self, file: &File, path: &[String]) {
        let Some(first) = path.first() else { return };
        if !first.starts_with(char::is_lowercase) {
            self.root_items.insert(format!("{first}: {}", file.name));
            return;
        }
        let (from, to) = (self.room(&file.module), self.room(path));
        let used = self.edges.entry(from.clone()).or_default();
        // The file of a folder only lists the rooms in it.
        if from != to && !to.starts_with(&format!("{from}::")) {
            used.entry(to).or_default().insert(file.name.clone());
        }
    }

    fn room(&self, path: &[String]) -> String {
        let split = format!("{}::*", path[0]);
        let deep = self
            .floors
            .iter()
            .flat_map(|rooms| rooms.iter())
            .any(|room| *room == split);
        let parts = path.iter().take(if deep { 2 } else { 1 });
        let parts: Vec<_> = parts
            .filter(|part| part.starts_with(char::is_lowercase))
            .collect();
        parts.into_iter().cloned().collect::<Vec<_>>().join("::")
    }

    pub(crate) fn floor(&self, room: &str) -> Option<usize> {
        let folder = room.split("::").next()?;
        let all = format!("{folder}::*");
        self.floors
            .iter()
            .position(|rooms| rooms.contains(&room) || rooms.contains(&all.as_str()))
    }

    pub(crate) fn floors(&self) -> usize {
        self.floors.len()
    }

    pub(crate) fn rooms(&self) -> BTreeSet<&str> {
        let used = self.edges.values().flat_map(BTreeMap::keys);
        self.edges.keys().chain(used).map(String::as_str).collect()
    }

    pub(crate) fn uses(&self, room: &str) -> impl Iterator<Item = &str> {
        let used = self.edges.get(room).into_iter();
        used.flat_map(|used| used.keys().map(String::as_str))
    }

    /// Rooms that no floor has.
    pub(crate) fn unknown(&self) -> Vec<String> {
        let mut rooms = self.rooms();
        rooms.retain(|room| self.floor(room).is_none());
        rooms.into_iter().map(str::to_owned).collect()
    }

    /// Edges to a higher floor.
    pub(crate) fn upward(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (from, used) in &self.edges {
            for (to, files) in used
                .iter()
                .filter(|(to, _)| self.floor(to) > self.floor(from))
            {
                let files: Vec<_> = files.iter().map(String::as_str).collect();
                found.push(format!("{from} -> {to}: {}", files.join(", ")));
            }
        }
        found
    }

    /// Items that are named by their re-export at the root.
    pub(crate) fn root_items(&self) -> Vec<String> {
        self.root_items.iter().cloned().collect()
    }

    /// Groups of rooms that reach each other.
    pub(crate) fn cycles(&self) -> Vec<Vec<String>> {
        let rooms = self.rooms();
        let reach: BTreeMap<_, _> = rooms.iter().map(|room| (*room, self.reach(room))).collect();
        let mut groups = BTreeSet::new();
        for room in &rooms {
            let mutual =
                |other: &&&str| reach[room].contains(**other) && reach[**other].contains(*room);
            let group: Vec<_> = rooms
                .iter()
                .filter(mutual)
                .map(|room| (*room).to_owned())
                .collect();
            if !group.is_empty() {
                groups.insert(group);
            }
        }
        groups.into_iter().collect()
    }

    fn reach<'a>(&'a self, room: &'a str) -> BTreeSet<&'a str> {
        let mut seen = BTreeSet::new();
        let mut next = vec![room];
        while let Some(room) = next.pop() {
            next.extend(self.uses(room).filter(|used| seen.insert(*used)));
        }
        seen
    }
}

/// A line per room, the highest floor first.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for floor in (0..self.floors()).rev() {
            for room in self.rooms() {
                if self.floor(room) == Some(floor) {
                    let used: Vec<_> = self.uses(room).collect();
                    let used = if used.is_empty() {
                        "-".to_owned()
                    } else {
                        used.join(" ")
                    };
                    writeln!(f, "{floor}  {room} -> {used}")?;
                }
            }
        }
        Ok(())
    }
}
