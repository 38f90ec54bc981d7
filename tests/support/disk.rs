//! Small disks of a test's own.

use tokio::process::Command;

use super::{
    database::{Folder, left_out},
    process::Process,
};

/// A disk in memory of so many MiB.
pub(crate) fn in_memory(mebibytes: u32) -> String {
    format!("mount -t tmpfs -o size={mebibytes}m none \"$0\"")
}

/// A process with a disk of its own in the folder, which is gone with the process; `None` if that is
/// not allowed. `start` adds this binary's arguments to the command.
pub(crate) fn with_disk(
    what: &str,
    mount: &str,
    folder: &Folder,
    start: impl FnOnce(Command) -> Process,
) -> Option<Process> {
    let path = folder.path().to_str().expect("a path");
    let mount = format!("{mount} && exec \"$@\"");
    let unshare = ["--mount", "sh", "-c", &mount, path];
    let trial = std::process::Command::new("unshare")
        .args(unshare)
        .arg("true")
        .output();
    if !trial.is_ok_and(|trial| trial.status.success()) {
        left_out(what, "this user can't mount a disk");
        return None;
    }
    let mut command = Command::new("unshare");
    command
        .args(unshare)
        .arg(std::env::current_exe().expect("this binary"));
    Some(start(command))
}
