//! Prompts rendered by chat templates.

use std::fs;
use std::ops::ControlFlow;

use crate::gguf::conversing;
use crate::support::Checkpoint;
use safetensors::Dtype;
use serde_json::json;
use tqkv::attention::AttentionCache;
use tqkv_model::generate::{GenerateSpec, StopReason, generate};
use tqkv_model::{Conversation, Model, ModelError};

/// The elements of the families' templates, in short.
const LIKE_SMOLLM: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
    {{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}\
    {{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const LIKE_LLAMA: &str = "{{- bos_token }}\n{%- if not date_string is defined %}\n    {%- if strftime_now is defined %}\n\
    {%- set date_string = strftime_now('%d %b %Y') %}\n    {%- else %}\n        {%- set date_string = '26 Jul 2024' %}\n\
    {%- endif %}\n{%- endif %}\n{%- if messages[0]['role'] == 'system' %}\n\
    {%- set system_message = messages[0]['content']|trim %}\n    {%- set messages = messages[1:] %}\n{%- else %}\n\
    {%- set system_message = '' %}\n{%- endif %}\n{{- date_string + '|' + system_message }}\n\
    {%- if tools is not none %}\n    {{- tools | tojson(indent=4) }}\n{%- endif %}\n\
    {%- for message in messages %}\n    {{- '<' + message['role'] + '>' + message['content'] | trim }}\n{%- endfor %}";
const LIKE_GEMMA: &str = "{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}\
    {%- set first = messages[0]['content'] + '\n\n' -%}{%- set rest = messages[1:] -%}{%- else -%}\
    {%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}{%- for message in rest -%}\
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}\
    {{ raise_exception('Conversation roles must alternate') }}{%- endif -%}\
    {{ '<start_of_turn>' + message['role'] + '\n' + (first if loop.first else '') }}\
    {%- if message['content'] is string -%}{{ message['content'].strip() }}\
    {%- elif message['content'] is iterable -%}x{%- endif -%}{{ '<end_of_turn>\n' }}{%- endfor -%}";
const LIKE_QWEN: &str = "{%- set ns = namespace(multi=true, last=messages|length - 1) %}\
    {%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}\
    {%- if ns.multi and message.role == 'user' and not (message.content.startswith('<t>') and message.content.endswith('</t>')) %}\
    {%- set ns.multi = false %}{%- set ns.last = index %}{%- endif %}{%- endfor %}\
    {{- ns.last ~ messages[ns.last].content.split('?')[0].lstrip('\n') }}\
    {%- if enable_thinking is defined and enable_thinking is false %}no{%- endif %}";

#[test]
fn templates_of_the_families_render() {
    let smollm = "<|im_end|>\n<|im_start|>user\n Why? <|im_end|>\n<|im_start|>assistant\n";
    for (template, system, expected) in [
        (LIKE_SMOLLM, None, format!("<|im_start|>system\nBe brief{smollm}")),
        (LIKE_SMOLLM, Some("S"), format!("<|im_start|>system\nS{smollm}")),
        (LIKE_LLAMA, Some(" S "), "<s>26 Jul 2024|S<user>Why?".to_owned()),
        (LIKE_GEMMA, None, "<s><start_of_turn>user\nWhy?<end_of_turn>\n".to_owned()),
        (LIKE_GEMMA, Some("S"), "<s><start_of_turn>user\nS\n\nWhy?<end_of_turn>\n".to_owned()),
        (LIKE_QWEN, Some("S"), "1 Why".to_owned()),
    ] {
        assert_eq!(conversing(Some(template)).chat_prompt(system, " Why? ").unwrap(), expected);
    }
}

#[test]
fn templates_that_fail_end_in_one_line() {
    let error = |template: &str| {
        let error = conversing(Some(template)).chat_prompt(None, "x").unwrap_err().to_string();
        assert!(error.starts_with("chat template: ") && !error.contains('\n'), "{error}");
        error
    };
    assert!(error("{{ raise_exception('roles\nmust alternate') }}").contains("roles must alternate"));
    assert!(error("{% for").contains("line 1"));
    assert!(error("{{ strftime_now('%d') }}").contains("strftime_now"));
    let nested = "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}";
    assert!(error(nested).contains("fuel"), "{}", error(nested));
    assert!(error(&" ".repeat((1 << 20) + 1)).contains("1048577 bytes; expected up to 1048576"));
    error("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}");
    error(&"{{ (".repeat(9999));
    error(&format!("{{{{ {} }}}}", "(".repeat(99999)));
    error(&"{% if x %}".repeat(99999));
}

#[test]
fn without_a_template_there_is_no_conversation() {
    for error in [
        conversing(None).chat_prompt(None, "x").unwrap_err(),
        conversing(None).into_chat().unwrap_err(),
        Model::shipped().unwrap().into_chat().unwrap_err(),
    ] {
        assert!(matches!(error, ModelError::NoChatTemplate), "{error}");
        assert!(error.to_string().contains("no chat template") && !error.to_string().contains('\n'));
    }
}

#[test]
fn conversations_begin_once_and_end_with_the_turn() {
    let model = conversing(Some("{{ bos_token }}{{ messages[0].content }}"));
    let prompt_tokens = |model: &Model, prompt: &str| {
        let spec = GenerateSpec { max_new_tokens: 1, ..Default::default() };
        let mut cache = model.config().dense_cache().unwrap();
        let made = generate(model, prompt.as_bytes(), &spec, &mut cache, &mut |_| ControlFlow::Continue(()));
        made.unwrap().prompt_tokens
    };
    assert_eq!((prompt_tokens(&model, "abc"), model.config().eos_tokens.as_slice()), (4, &[10][..]));
    let prompt = model.chat_prompt(None, "abc").unwrap();
    assert_eq!((prompt.as_str(), prompt_tokens(&model, &prompt)), ("<s>abc", 5));
    let model = model.into_chat().unwrap();
    assert_eq!((prompt_tokens(&model, &prompt), model.config().eos_tokens.as_slice()), (4, &[10, 9][..]));
}

#[test]
fn a_conversation_runs_only_what_is_new_and_answers_as_from_its_whole_text() {
    let template = "{{ bos_token }}{% for m in messages %}[{{ m.role[0] }}{{ m.content }}]{% endfor %}";
    let model = conversing(Some(template)).into_chat().unwrap();
    let spec = GenerateSpec { max_new_tokens: 5, ..Default::default() };
    let more = &mut |_: &str| ControlFlow::Continue(());
    let mut talk = Conversation::new(Some("S"));
    let mut cache = model.config().dense_cache().unwrap();
    let first = talk.ask(&model, "abc", &spec, &mut cache, more).unwrap();
    // The end of the model's own turn is the first thing that is new.
    let text = format!("<s>[sS][uabc][a{}][ude]", first.text);
    let second = talk.ask(&model, "de", &spec, &mut cache, more).unwrap();
    let mut other = model.config().dense_cache().unwrap();
    let want = generate(&model, text.as_bytes(), &spec, &mut other, more).unwrap();
    assert_eq!((second.text, cache.len()), (want.text, other.len()));
    let held = "<s>[sS][uabc]".len() - "<s>".len() + 1;
    assert_eq!((first.prompt_tokens, second.prompt_tokens), (held, want.prompt_tokens - held));

    // A question that does not fit is no part of the conversation.
    let long = "x".repeat(model.config().context);
    let refused = talk.ask(&model, &long, &spec, &mut cache, more).unwrap_err();
    assert!(matches!(refused, ModelError::ContextExceeded { .. }), "{refused}");
    // An answer ends where the context does.
    let mut full = talk.clone();
    let context = model.config().context;
    let held = cache.len();
    let question = "x".repeat(context - held - "[a12345][u]".len());
    let made =
        full.ask(&model, &question, &GenerateSpec { max_new_tokens: context, ..spec }, &mut cache, more);
    let made = made.unwrap();
    assert!(made.stop == StopReason::EndOfText || cache.len() + 1 == context, "{made:?}");
    let third = talk.ask(&model, "f", &spec, &mut cache, &mut |_| ControlFlow::Break(())).unwrap();
    assert!(third.tokens.len() == 1 && third.prompt_tokens < want.prompt_tokens);
}

#[test]
fn folders_name_template_and_tokens() {
    let dir = tempfile::tempdir().unwrap();
    Checkpoint::new("LlamaForCausalLM", 8, json!({})).write(dir.path(), Dtype::F32);
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    let prompt = || {
        let model = Model::load(dir.path()).map_err(|error| error.to_string())?;
        model.chat_prompt(None, "x").map_err(|error| error.to_string())
    };
    write(
        "tokenizer_config.json",
        r#"{ "bos_token": { "content": "<b>" }, "eos_token": "<e>", "chat_template": [
        { "name": "tool_use", "template": "t" }, { "name": "default", "template": "{{ bos_token }}-{{ eos_token }}" }] }"#,
    );
    assert_eq!(prompt().unwrap(), "<b>-<e>");
    write("chat_template.jinja", "own{{ bos_token }}");
    assert_eq!(prompt().unwrap(), "own<b>");
    fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    for config in ["{", "[]", r#"{ "chat_template": 1 }"#, r#"{ "chat_template": [] }"#] {
        write("tokenizer_config.json", config);
        let error = prompt().unwrap_err();
        assert!(error.contains("chat template") && !error.contains('\n'), "{error}");
    }
}
