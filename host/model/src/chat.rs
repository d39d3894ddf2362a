//! Prompts in the form that a model was trained on: its chat template, rendered.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::{Value, json};

use crate::error::ModelError;

/// The longest template in bytes.
const LONGEST: usize = 1 << 20;

/// The most instructions that a template may run, and the deepest nesting of calls.
const FUEL: u64 = 1_000_000;
const DEPTH: usize = 50;

/// A turn of a conversation, as chat templates see it.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) role: &'static str,
    pub(crate) content: String,
}

impl Message {
    pub(crate) fn new(role: &'static str, content: &str) -> Self {
        Self { role, content: content.to_owned() }
    }
}

/// The parts of a model's files that describe conversations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chat {
    pub(crate) template: Option<String>,
    /// The tokens that templates call `bos_token` and `eos_token`.
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
}

impl Chat {
    /// Reads the bytes of `tokenizer_config.json` and of `chat_template.jinja`. The latter takes precedence
    /// over the template in the former.
    pub(crate) fn from_json(config: Option<&[u8]>, template: Option<&[u8]>) -> Result<Self, ModelError> {
        let bad = |error: String| ModelError::Chat(format!("tokenizer_config.json: {error}"));
        let config: Value =
            config.map_or(Ok(Value::Null), serde_json::from_slice).map_err(|e| bad(e.to_string()))?;
        let token = |name: &str| {
            let token = &config[name];
            token.as_str().or(token["content"].as_str()).map(str::to_owned)
        };
        let named = |list: &Vec<Value>| {
            let default = list.iter().find(|entry| entry["name"] == "default");
            default.and_then(|entry| entry["template"].as_str()).map(str::to_owned)
        };
        let own = match &config["chat_template"] {
            Value::Null => None,
            Value::String(template) => Some(template.clone()),
            Value::Array(list) => named(list),
            _ => return Err(bad("chat_template is no text and no list of them".into())),
        };
        let template = template.map(|bytes| {
            let text = String::from_utf8(bytes.to_vec());
            text.map_err(|_| ModelError::Chat("chat_template.jinja is not UTF-8".into()))
        });
        Ok(Self { template: template.transpose()?.or(own), bos: token("bos_token"), eos: token("eos_token") })
    }

    /// The bytes of a `tokenizer_config.json` with the same contents.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let (template, bos, eos) = (&self.template, &self.bos, &self.eos);
        json!({ "chat_template": template, "bos_token": bos, "eos_token": eos }).to_string().into_bytes()
    }

    /// The text of a conversation, up to the start of the model's next turn.
    pub(crate) fn render(&self, messages: &[Message]) -> Result<String, ModelError> {
        let template = self.template.as_deref().ok_or(ModelError::NoChatTemplate)?;
        if template.len() > LONGEST {
            let len = template.len();
            return Err(ModelError::Chat(format!("{len} bytes; expected up to {LONGEST}")));
        }
        let of = |message: &Message| context! { role => message.role, content => message.content.as_str() };
        let messages: Vec<_> = messages.iter().map(of).collect();
        let mut environment = Environment::new();
        if let Ok(syntax) = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build() {
            environment.set_syntax(syntax);
        }
        environment.set_recursion_limit(DEPTH);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        let values = context! {
            messages,
            add_generation_prompt => true,
            bos_token => self.bos.as_deref().unwrap_or_default(),
            eos_token => self.eos.as_deref().unwrap_or_default(),
            tools => (),
            documents => (),
        };
        let rendered = environment.template_from_str(template).and_then(|template| template.render(values));
        rendered.map_err(|error| {
            let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
            let line = error.line().map_or_else(String::new, |line| format!(" (line {line})"));
            ModelError::Chat(format!("{detail}{line}").replace('\n', " "))
        })
    }
}
