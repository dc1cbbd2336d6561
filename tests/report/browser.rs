//! Headless Chromium, driven over the DevTools protocol on a pipe: JSON messages that end with a zero byte, which it reads
//! from descriptor 3 and writes to 4.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

/// A browser with one tab.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    next: u64,
    /// The name that the browser gives the tab.
    tab: Option<String>,
    /// The complaints of pages: messages on the console, exceptions.
    pub complaints: Vec<String>,
    loads: usize,
    _profile: tempfile::TempDir,
}

/// Seconds after which a browser that hangs is ended, which fails the test.
const PATIENCE: &str = "240";

impl Browser {
    /// Starts one; `None`, which is said, where there is none.
    pub fn start() -> Option<Self> {
        let Some(program) = installed() else {
            // Straight to the stream, so that it is seen though the test passes.
            let said = "SKIPPED: there is no chromium on this machine, so no page was opened";
            writeln!(std::io::stderr(), "{said}").expect("standard error");
            return None;
        };
        let profile = tempfile::tempdir().expect("a scratch folder");
        let mut child = spawned(&program, profile.path());
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut browser = Self {
            child,
            to,
            from,
            next: 0,
            tab: None,
            complaints: Vec::new(),
            loads: 0,
            _profile: profile,
        };
        browser.attach();
        Some(browser)
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let tab = self.call("Target.attachToTarget", attach);
        self.tab = tab["sessionId"].as_str().map(String::from);
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            self.call(domain, json!({}));
        }
    }

    /// Opens a file and waits until it has loaded.
    pub fn open(&mut self, page: &Path) {
        self.open_link(page, "");
    }

    /// Opens a file with what stands behind its name in the address.
    pub fn open_link(&mut self, page: &Path, behind: &str) {
        let loads = self.loads;
        let url = format!("file://{}{behind}", page.display());
        let found = self.call("Page.navigate", json!({ "url": url }));
        assert!(found["errorText"].is_null(), "{found}");
        while self.loads == loads {
            let message = self.read();
            self.hear(&message);
        }
    }

    /// The value of an expression.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let ask = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let found = self.call("Runtime.evaluate", ask);
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// A number that an expression has.
    pub fn number(&mut self, expression: &str) -> f64 {
        let value = self.evaluate(expression);
        value.as_f64().unwrap_or_else(|| panic!("{expression} is {value}"))
    }

    /// A text that an expression has.
    pub fn text(&mut self, expression: &str) -> String {
        let value = self.evaluate(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression} is {value}")).into()
    }

    /// Presses and releases a key.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { key } else { "" };
            let event = json!({ "type": kind, "key": key, "text": text });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Makes the window as wide and high as a phone's, or as it was.
    pub fn resize(&mut self, phone: bool) {
        let size = json!({ "width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": false });
        match phone {
            true => self.call("Emulation.setDeviceMetricsOverride", size),
            false => self.call("Emulation.clearDeviceMetricsOverride", json!({})),
        };
    }

    /// The page as it is printed, as PDF in base 64.
    pub fn print(&mut self) -> String {
        let found = self.call("Page.printToPDF", json!({ "printBackground": true }));
        found["data"].as_str().expect("a document").into()
    }

    /// Returns a picture of the tab, somewhat smaller, as PNG in base 64.
    pub fn screenshot(&mut self) -> String {
        let top = self.number("scrollY");
        let clip = json!({ "x": 0, "y": top, "width": 1400, "height": 860, "scale": 0.8 });
        let found = self.call("Page.captureScreenshot", json!({ "format": "png", "clip": clip }));
        found["data"].as_str().expect("an image").into()
    }

    /// Calls a method and waits for its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let id = self.next;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(tab) = &self.tab {
            message["sessionId"] = json!(tab);
        }
        self.to.write_all(message.to_string().as_bytes()).expect("chromium reads");
        self.to.write_all(&[0]).expect("chromium reads");
        self.to.flush().expect("chromium reads");
        loop {
            let message = self.read();
            if message["id"].as_u64() == Some(id) {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.hear(&message);
        }
    }

    fn read(&mut self) -> Value {
        let mut message = Vec::new();
        let read = self.from.read_until(0, &mut message).expect("chromium writes");
        assert!(read > 0, "chromium has ended, or took more than {PATIENCE} s");
        message.pop();
        serde_json::from_slice(&message).expect("JSON")
    }

    fn hear(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Page.loadEventFired") => self.loads += 1,
            Some("Runtime.exceptionThrown" | "Log.entryAdded") => {
                self.complaints.push(params.to_string());
            }
            Some("Runtime.consoleAPICalled") => self.complaints.push(params["args"].to_string()),
            _ => {}
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.tab = None;
        let close = json!({ "id": self.next + 1, "method": "Browser.close" }).to_string();
        // It may have ended by itself.
        let _ = self.to.write_all(&[close.as_bytes(), &[0]].concat());
        let _ = self.child.wait();
    }
}

/// A browser whose pipes are the standard input and output of what is started. The shell gives it its descriptors; nothing in the
/// command is of a name, so nothing needs to be quoted.
fn spawned(program: &Path, profile: &Path) -> Child {
    let command = "exec timeout \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
    Command::new("sh")
        .args(["-c", command, PATIENCE])
        .arg(program)
        .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"])
        .args(["--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars"])
        .args(["--window-size=1400,900", "--force-device-scale-factor=1"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell")
}

/// The browser of the path, if any.
fn installed() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let paths = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&paths)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .collect::<Vec<_>>();
    files.into_iter().find(|file| file.is_file())
}
