// One line for each page. `key` follows g on the keyboard; pages without a title in `nav` are reached
// from others.
export const pages = {
  '': { title: 'Overview', key: 'o', nav: true, load: () => import('./pages/overview.js') },
  instances: { title: 'Instances', key: 'i', nav: true, load: () => import('./pages/instances.js') },
  links: { title: 'Links', key: 'l', nav: true, load: () => import('./pages/links.js') },
  topics: { title: 'Topics', key: 't', nav: true, load: () => import('./pages/topics.js') },
  queues: { title: 'Queues', key: 'q', nav: true, load: () => import('./pages/queues.js') },
  views: { title: 'Views', key: 'v', nav: true, load: () => import('./pages/views.js') },
  clients: { title: 'Clients', key: 'c', nav: true, load: () => import('./pages/clients.js') },
  automation: { title: 'Actions', key: 'a', nav: true, load: () => import('./pages/automation.js') },
  messages: { title: 'Messages', key: 'm', nav: true, load: () => import('./pages/messages.js') },
  history: { title: 'History', key: 'h', nav: true, load: () => import('./pages/history.js') },
  events: { title: 'Events', key: 'e', nav: true, load: () => import('./pages/events.js') },
  check: { title: 'Check', key: 'k', nav: true, load: () => import('./pages/check.js') },
  drills: { title: 'Drills', key: 'd', nav: true, load: () => import('./pages/drills.js') },
  instance: { title: 'Instance', under: 'instances', load: () => import('./pages/instance.js') },
  link: { title: 'Link', under: 'links', load: () => import('./pages/links.js') },
  topic: { title: 'Topic', under: 'topics', load: () => import('./pages/topics.js') },
  queue: { title: 'Queue', under: 'queues', load: () => import('./pages/queues.js') },
  view: { title: 'View', under: 'views', load: () => import('./pages/views.js') },
  client: { title: 'Client', under: 'clients', load: () => import('./pages/clients.js') },
  message: { title: 'Message', under: 'messages', load: () => import('./pages/messages.js') },
};
