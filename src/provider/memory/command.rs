//! The commands that run in a memory sandbox: enough for tests, without a shell.

use std::collections::VecDeque;
use std::time::Duration;

/// One command of a script, its words expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Simple {
    /// The name and its arguments.
    pub(super) words: Vec<String>,
    /// Where standard output goes, if not to the caller.
    pub(super) redirect: Option<Redirect>,
}

/// A file that standard output goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    /// The file.
    pub(super) path: String,
    /// Whether its content stays.
    pub(super) append: bool,
}

/// What a command means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Ends with this code, having said something on standard output and standard error.
    Say { code: i32, stdout: Vec<u8>, stderr: &'static str },
    /// Copies standard input to standard output.
    Copy,
    /// Copies a file to standard output.
    Cat(String),
    /// Replaces a file.
    Write { path: String, text: String },
    /// Removes a file.
    Remove(String),
    /// Waits.
    Sleep(Duration),
    /// Ends at once and leaves a process behind for this long.
    Linger(Duration),
    /// Ends the whole script.
    Exit(i32),
}

/// The simple commands of an argv: a shell's script, or the one command it is.
pub(super) fn parse(argv: &[String]) -> Vec<Simple> {
    match argv {
        [shell, flag, script] if flag == "-c" && (shell == "sh" || shell == "/bin/sh") => script_of(script),
        words => vec![Simple { words: words.to_vec(), redirect: None }],
    }
}

fn script_of(script: &str) -> Vec<Simple> {
    let mut commands = Vec::new();
    let mut tokens: VecDeque<Token> = tokens(script).into();
    while !tokens.is_empty() {
        let mut simple = Simple { words: Vec::new(), redirect: None };
        while let Some(token) = tokens.pop_front() {
            match token {
                Token::End => break,
                Token::Word(word) => simple.words.push(word),
                Token::Into { append } => {
                    if let Some(Token::Word(path)) = tokens.pop_front() {
                        simple.redirect = Some(Redirect { path, append });
                    }
                }
            }
        }
        if !simple.words.is_empty() {
            commands.push(simple);
        }
    }
    commands
}

enum Token {
    Word(String),
    Into { append: bool },
    End,
}

fn tokens(script: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = script.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\'' | '"' => {
                let quoted = word.get_or_insert_default();
                quoted.extend(letters.by_ref().take_while(|inner| *inner != letter));
            }
            ';' | '\n' | '>' => {
                found.extend(word.take().map(Token::Word));
                found.push(if letter == '>' { Token::Into { append: letters.next_if_eq(&'>').is_some() } } else { Token::End });
            }
            _ if letter.is_whitespace() => found.extend(word.take().map(Token::Word)),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    found.extend(word.map(Token::Word));
    found
}

/// What a command means; what is not known is not found.
pub(super) fn action(words: &[String]) -> Action {
    let number = |text: &String| text.parse::<u64>().unwrap_or(0);
    let words: Vec<&String> = words.iter().collect();
    match (words.first().map(|name| name.as_str()), words.get(1..).unwrap_or_default()) {
        (Some("true"), _) => Action::Say { code: 0, stdout: Vec::new(), stderr: "" },
        (Some("false"), _) => Action::Say { code: 1, stdout: Vec::new(), stderr: "" },
        (Some("echo"), arguments) => {
            let text = arguments.iter().map(|word| word.as_str()).collect::<Vec<_>>().join(" ") + "\n";
            Action::Say { code: 0, stdout: text.into_bytes(), stderr: "" }
        }
        (Some("cat"), []) => Action::Copy,
        (Some("cat"), [path]) => Action::Cat((*path).clone()),
        (Some("write"), [path, text]) => Action::Write { path: (*path).clone(), text: (*text).clone() },
        (Some("rm"), [path]) => Action::Remove((*path).clone()),
        (Some("sleep"), [span]) => Action::Sleep(Duration::from_millis(number(span))),
        (Some("linger"), [span]) => Action::Linger(Duration::from_millis(number(span))),
        (Some("exit"), [code]) => Action::Exit(code.parse().unwrap_or(2)),
        _ => Action::Say { code: 127, stdout: Vec::new(), stderr: "not found\n" },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_its_simple_commands() {
        let argv = ["sh", "-c", "echo 'a; b'  c >> out.txt; cat x>y\nexit 3"].map(str::to_owned);
        let parsed = parse(&argv);
        let words: Vec<Vec<&str>> = parsed.iter().map(|simple| simple.words.iter().map(String::as_str).collect()).collect();
        assert_eq!(words, [vec!["echo", "a; b", "c"], vec!["cat", "x"], vec!["exit", "3"]]);
        assert_eq!(parsed[0].redirect, Some(Redirect { path: "out.txt".to_owned(), append: true }));
        assert_eq!(parsed[1].redirect, Some(Redirect { path: "y".to_owned(), append: false }));
    }

    #[test]
    fn an_unknown_command_is_127() {
        assert_eq!(action(&["python".to_owned()]), Action::Say { code: 127, stdout: Vec::new(), stderr: "not found\n" });
    }
}
