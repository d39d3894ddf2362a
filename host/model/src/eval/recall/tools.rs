//! Calls of tools whose schemas were given.

use super::material::Material;
use super::question::Question;
use crate::ModelError;

impl Material<'_> {
    /// The schemas of tools, and a request whose values are given without the names of the arguments. The call is
    /// asked for in JSON, after that of another tool.
    pub(super) fn tools(&mut self) -> Result<Question, ModelError> {
        const TOOLS: usize = 4;
        let words = self.choose(4 * TOOLS);
        let mut value = || self.random.u32(100..1000);
        let tools: Vec<_> =
            words.chunks_exact(4).map(|words| Tool { words, values: [0; 3].map(|_| value()) }).collect();
        let schemas: String = tools.iter().map(Tool::schema).collect();
        let (shown, asked) = (&tools[0], &tools[self.random.usize(1..TOOLS)]);
        let example = [shown.request(), shown.arguments().join(", \""), "}}\n".to_owned(), asked.request()];
        Ok(Question {
            opening: self.encode(&format!("The tools, as JSON schemas:\n{schemas}\n"))?,
            told: Vec::new(),
            is_scattered: true,
            question: self.encode(&format!("\n\n{}", example.concat()))?,
            answer: self.encode(&asked.arguments().join(", \""))?,
            wanted: asked.arguments().to_vec(),
        })
    }
}

/// A tool: its name, those of its arguments, and the values of a call.
struct Tool<'a> {
    words: &'a [String],
    values: [u32; 3],
}

impl Tool<'_> {
    fn schema(&self) -> String {
        let arguments = self.words[1..].iter().map(|word| format!("\"{word}\": {{\"type\": \"integer\"}}"));
        let arguments = arguments.collect::<Vec<_>>().join(", ");
        format!("{{\"name\": \"{}\", \"parameters\": {{{arguments}}}}}\n", self.words[0])
    }

    /// What a user asks for, and the call up to its arguments.
    fn request(&self) -> String {
        let (tool, [a, b, c]) = (&self.words[0], self.values);
        format!(
            "User: Call {tool} with {a}, {b} and {c}.\nAssistant: {{\"name\": \"{tool}\", \"arguments\": {{\""
        )
    }

    /// The arguments with their values, without the quote before a name, which is the end of the request.
    fn arguments(&self) -> [String; 3] {
        [0, 1, 2].map(|i| format!("{}\": {}", self.words[1 + i], self.values[i]))
    }
}
