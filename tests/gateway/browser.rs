//! A headless Chromium, by its debugging protocol over a pipe.

use std::{env, process::Stdio};

use base64::prelude::*;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{gateway::Folder, support::database::left_out};

pub(crate) struct Browser {
    _child: Child,
    _profile: Folder,
    says: ChildStdin,
    hears: BufReader<ChildStdout>,
    page: String,
    loaded: bool,
    last: u64,
    /// The page's complaints: exceptions, and violations of its Content-Security-Policy.
    pub(crate) complaints: Vec<String>,
}

impl Browser {
    /// Opens a page; `None` if there is no Chromium.
    pub(crate) async fn open(url: &str) -> Option<Self> {
        let paths = env::var_os("PATH").unwrap_or_default();
        if !env::split_paths(&paths).any(|path| path.join("chromium").exists()) {
            left_out("the console in a browser", "there is no chromium");
            return None;
        }
        let profile = Folder::new();
        // The protocol is spoken on descriptors 3 and 4.
        let shell = "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage \
            --no-first-run --user-data-dir=\"$0\" --remote-debugging-pipe 3<&0 4>&1 1>&2";
        let mut child = Command::new("sh")
            .args(["-c", shell, &profile.path("profile")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut browser = Self {
            says: child.stdin.take().unwrap(),
            hears: BufReader::new(child.stdout.take().unwrap()),
            _child: child,
            _profile: profile,
            page: String::new(),
            loaded: false,
            last: 0,
            complaints: Vec::new(),
        };
        let target = browser
            .ask("Target.createTarget", json!({ "url": "about:blank" }))
            .await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let page = browser.ask("Target.attachToTarget", attach).await;
        browser.page = page["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({})).await;
        }
        let focused = json!({ "enabled": true });
        browser
            .ask("Emulation.setFocusEmulationEnabled", focused)
            .await;
        browser.size(1280, 900).await;
        browser.loaded = false;
        browser.ask("Page.navigate", json!({ "url": url })).await;
        // Any question will do: what happens is heard before its answer.
        while !browser.loaded {
            browser.ask("Page.getFrameTree", json!({})).await;
        }
        Some(browser)
    }

    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": params });
        if !self.page.is_empty() {
            message["sessionId"] = self.page.clone().into();
        }
        let text = format!("{message}\0");
        self.says.write_all(text.as_bytes()).await.unwrap();
        loop {
            let mut heard = Vec::new();
            self.hears.read_until(0, &mut heard).await.unwrap();
            heard.pop();
            let heard: Value = serde_json::from_slice(&heard).expect("the browser answers");
            match heard["method"].as_str() {
                Some("Page.loadEventFired") => self.loaded = true,
                Some("Runtime.exceptionThrown") => self.complaints.push(heard.to_string()),
                Some("Log.entryAdded") if heard["params"]["entry"]["source"] == "security" => {
                    self.complaints.push(heard.to_string());
                }
                _ => {}
            }
            if heard["id"] == self.last {
                assert!(heard["error"].is_null(), "{method}: {heard}");
                return heard["result"].clone();
            }
        }
    }

    /// The value of an expression in the page.
    pub(crate) async fn value(&mut self, expression: &str) -> Value {
        let params = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true,
        });
        let result = self.ask("Runtime.evaluate", params).await;
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&mut self, expression: &str) {
        let waits = format!(
            "(async () => {{ for (let i = 0; i < 600; i++) {{ if ({expression}) return true; \
             await new Promise((done) => setTimeout(done, 50)); }} return false; }})()"
        );
        if self.value(&waits).await != true {
            let page = self.value("document.body.innerText").await;
            panic!("still not so: {expression}\n{page}");
        }
    }

    pub(crate) async fn click(&mut self, selector: &str) {
        self.value(&format!("document.querySelector({selector:?}).click()"))
            .await;
    }

    pub(crate) async fn size(&mut self, width: u32, height: u32) {
        let params = json!({
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false,
        });
        self.ask("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// `light` or `dark`.
    pub(crate) async fn scheme(&mut self, scheme: &str) {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        self.ask(
            "Emulation.setEmulatedMedia",
            json!({ "features": [feature] }),
        )
        .await;
    }

    /// Presses a key where the focus is.
    pub(crate) async fn key(&mut self, key: &str) {
        let event = format!("new KeyboardEvent('keydown', {{ key: {key:?}, bubbles: true }})");
        self.value(&format!("document.activeElement.dispatchEvent({event})"))
            .await;
    }

    /// Keeps a picture of the page under `target/`.
    pub(crate) async fn picture(&mut self, name: &str) {
        let picture = self
            .ask("Page.captureScreenshot", json!({ "format": "png" }))
            .await;
        let picture = BASE64_STANDARD
            .decode(picture["data"].as_str().unwrap())
            .unwrap();
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("console");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), picture).unwrap();
    }
}
