// How the official npm packages speak each of the gateway's protocols: what steps.test.mjs needs to ask by them and to read their answers.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';

const { OPENAI_URL, ANTHROPIC_URL } = process.env;

const schema = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'], additionalProperties: false };

const openAI = {
  dial: (apiKey, fetch) => new OpenAI({ apiKey, baseURL: OPENAI_URL, fetch }),
  models: (client) => client.models,
  errors: OpenAI,
  error: (error) => error.error,
  told: ({ type, code }) => [type, code],
  requestID: ({ error }) => error.request_id,
  kinds: { // the types of errors, by their codes
    model_not_found: 'invalid_request_error', RESIDENCY_MISMATCH: 'invalid_request_error', invalid_api_key: 'invalid_request_error',
    insufficient_quota: 'insufficient_quota', capacity_unavailable: 'server_error', upstream_error: 'server_error',
  },
};

const chat = {
  ...openAI,
  question: (model) => ({ model, messages: [{ role: 'user', content: 'Hello' }] }),
  input: 2, // tokens of the question, as the provider counts them
  ask: (client, question) => client.chat.completions.create(question),
  streamed: (client, question) => client.chat.completions.stream({ ...question, stream_options: { include_usage: true } }).finalChatCompletion(),
  delta: ({ choices }) => choices[0]?.delta.content,
  stop: 'stop',
  toolUse: 'tool_calls',
  answer: ({ choices: [{ message, finish_reason: finish }], usage }) => ({
    text: message.content, finish, usage: [usage.prompt_tokens, usage.completion_tokens],
  }),
  tools: [{ type: 'function', function: { name: 'run', parameters: schema } }],
  called: ({ choices: [{ message }] }) => {
    const [{ id, function: { name, arguments: input } }] = message.tool_calls;
    return { id, name, input: JSON.parse(input) };
  },
  goOn: (question, { choices: [{ message }] }, content) => ({
    ...question, messages: [...question.messages, message, { role: 'tool', tool_call_id: message.tool_calls[0].id, content }],
  }),
  shown: ({ messages }) => [JSON.parse(messages[1].tool_calls[0].function.arguments), messages[2].content],
  more: {
    'embeddings, which the SDK asks for in base64': async (client, { shown, notFound }) => {
      for (const [more, format] of [[{}, 'base64'], [{ encoding_format: 'float' }, 'float']]) {
        const { data, usage } = await client.embeddings.create({ model: 'open/scripted', input: ['Good', 'day'], ...more });
        assert.equal((await shown()).encoding_format, format);
        assert.deepEqual(data.map(({ embedding }) => Array.from(embedding)), [[0.25, -0.5, 1], [0.25, -0.5, 1]]);
        assert.deepEqual(usage, { prompt_tokens: 4, total_tokens: 4 });
      }
      await notFound(client.embeddings.create({ model: 'open/unknown', input: 'Good' }));
    },
    'a stream without usage, which nobody has asked for': async (client) => {
      const usages = [];
      for await (const chunk of await client.chat.completions.create({ ...chat.question('open/scripted'), stream: true })) {
        if ('usage' in chunk) usages.push(chunk.usage);
      }
      assert.deepEqual(usages, []);
    },
  },
};

const responses = {
  ...openAI,
  question: (model) => ({ model, input: [{ role: 'user', content: 'Hello' }], store: false }),
  input: 9,
  ask: (client, question) => client.responses.create(question),
  streamed: (client, question) => client.responses.stream(question).finalResponse(),
  delta: ({ type, delta }) => (type === 'response.output_text.delta' ? delta : undefined),
  stop: 'completed',
  toolUse: 'completed',
  answer: ({ output_text: text, status: finish, usage }) => ({ text, finish, usage: [usage.input_tokens, usage.output_tokens] }),
  tools: [{ type: 'function', name: 'run', parameters: schema, strict: true }],
  called: ({ output: [{ call_id: id, name, arguments: input }] }) => ({ id, name, input: JSON.parse(input) }),
  goOn: (question, { output }, result) => ({
    ...question, input: [...question.input, ...output, { type: 'function_call_output', call_id: output[0].call_id, output: result }],
  }),
  shown: ({ input }) => [JSON.parse(input[1].arguments), input[2].output],
};

const anthropic = {
  dial: (apiKey, fetch) => new Anthropic({ apiKey, baseURL: ANTHROPIC_URL, fetch }),
  models: (client) => client.models,
  errors: Anthropic,
  error: ({ error }) => error.error,
  told: ({ type, error }) => [type, error.error.code],
  requestID: ({ error }) => error.request_id,
  kinds: {
    model_not_found: 'not_found_error', RESIDENCY_MISMATCH: 'permission_error', invalid_api_key: 'authentication_error',
    insufficient_quota: 'rate_limit_error', capacity_unavailable: 'overloaded_error', upstream_error: 'api_error',
  },
  question: (model) => ({ model, max_tokens: 100, messages: [{ role: 'user', content: 'Hello' }] }),
  input: 2,
  ask: (client, question) => client.messages.create(question),
  streamed: (client, question) => client.messages.stream(question).finalMessage(),
  delta: ({ delta }) => delta?.text,
  stop: 'end_turn',
  toolUse: 'tool_use',
  answer: ({ content: [{ text }], stop_reason: finish, usage }) => ({ text, finish, usage: [usage.input_tokens, usage.output_tokens] }),
  tools: [{ name: 'run', input_schema: schema }],
  called: ({ content: [{ id, name, input }] }) => ({ id, name, input }),
  goOn: (question, { content }, result) => ({
    ...question,
    messages: [
      ...question.messages, { role: 'assistant', content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: content[0].id, content: result }] },
    ],
  }),
  shown: ({ messages }) => [messages[1].content[0].input, messages[2].content[0].content],
  more: {
    'tokens are counted': async (client, { notFound }) => {
      const { messages } = anthropic.question();
      const { input_tokens: tokens } = await client.messages.countTokens({ model: 'open/scripted', messages });
      assert.equal(tokens, 2);
      await notFound(client.messages.countTokens({ model: 'open/unknown', messages }));
    },
  },
};

// beta has the same methods below another name.
const beta = {
  ...anthropic,
  models: (client) => client.beta.models,
  ask: (client, question) => client.beta.messages.create(question),
  streamed: (client, question) => client.beta.messages.stream(question).finalMessage(),
  more: { 'tokens are counted': (client, provider) => anthropic.more['tokens are counted'](client.beta, provider) },
};

export const speakers = { 'openai-chat': chat, 'openai-responses': responses, anthropic, 'anthropic-beta': beta };
