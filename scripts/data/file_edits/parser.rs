use std::collections::HashMap;

#[derive(Debug, PartialEq)]
pub enum Error {
    MissingValue(String),
    EmptyKey,
}

pub fn parse(text: &str) -> Result<HashMap<String, String>, Error> {
    let mut values = HashMap::new();
    for line in text.lines() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some(pair) => pair,
            None => return Err(Error::MissingValue(line.to_string())),
        };
        if key.trim().is_empty() {
            return Err(Error::EmptyKey);
        }
        values.insert(key.trim().to_string(), value.trim().to_string());
    }
    Ok(values)
}
